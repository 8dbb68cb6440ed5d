//! `export`: a model in the form of an engine.

use ztensor::export::{ExportFormat, ExportOptions, export};

use super::Common;
use crate::args::{Engine, Export, Output};
use crate::failure::{FINE, Outcome};
use crate::human;
use crate::llama_cpp::Model;
use crate::ui::Progress;

pub fn run(options: &Export, common: Common) -> Outcome {
    let path = options.output();
    let place = Output { output: path.clone(), force: options.force };
    let output = place.check(&[&options.model])?;
    let reader = common.open(&options.model)?;
    let format = match options.to {
        Engine::Gguf => ExportFormat::Gguf,
    };
    let model = Model::new(&options.model, &reader, options.dtype, !options.no_tokenizer)?;
    let progress = Progress::new("writing", model.len(), common.quiet);
    let settings = ExportOptions::default().threads(common.threads).observer(Some(&progress));
    crate::ui::catch_interrupts();
    export(&model, output, format, &settings)?;
    drop(progress);
    let (path, architecture) = (human::path(&path), model.architecture());
    common.say(format_args!("{path}: {} as {architecture} of llama.cpp", human::bytes(model.len())));
    if model.overflowed() > 0 {
        let values = human::counted(model.overflowed(), "value");
        common.say(format_args!("warning: {values} too large for the new type became Inf"));
    }
    Ok(FINE)
}
