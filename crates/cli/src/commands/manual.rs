//! `completions` and `man`: made from the definitions of the commands.

use std::io::Write;

use crate::args::Completions;
use crate::failure::{FINE, Outcome};

pub fn completions(options: &Completions, mut program: clap::Command) -> Outcome {
    let name = program.get_name().to_owned();
    // Into memory first: the generator panics where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut program, name, &mut script);
    crate::output::raw().write_all(&script)?;
    Ok(FINE)
}

/// One page: the program, then a section for each command.
pub fn page(mut program: clap::Command) -> Outcome {
    let name = program.get_name().to_uppercase();
    program.build();
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(program.clone());
    manual.render(&mut page)?;
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        writeln!(page, ".SH \"{name} {}\"", command.get_name().to_uppercase())?;
        let manual = clap_mangen::Man::new(command.clone());
        manual.render_synopsis_section(&mut page)?;
        manual.render_description_section(&mut page)?;
        manual.render_options_section(&mut page)?;
        manual.render_extra_section(&mut page)?;
    }
    crate::output::raw().write_all(&page)?;
    Ok(FINE)
}
