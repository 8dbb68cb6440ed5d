//! `info`: the tensors and metadata of files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value as Json, json};
use ztensor::{Format, Layout, Object, Reader};

use super::Common;
use crate::args::{Info, Sort};
use crate::describe::{dtype, encoding, preview};
use crate::failure::{FINE, Failure, Outcome};
use crate::fold::{Row, folded, unfolded};
use crate::table::{self, Align, Table};
use crate::untrusted::Untrusted;
use crate::{describe, files, human, json, quantization};

pub fn run(options: &Info, common: Common) -> Outcome {
    let paths = files::expanded(&options.files)?;
    let mut out = crate::output::stdout();
    let mut documents = Vec::new();
    let (mut sum, mut read) = (Total::default(), 0);
    let outcome = files::each(&paths, |path| {
        let several = paths.len() > 1;
        let reader = common.open(path)?;
        let mut objects = options.which.choose(&reader)?;
        match options.sort {
            Sort::File => {}
            Sort::Name => objects.sort_by_key(|(name, _)| *name),
            Sort::Size => objects.sort_by_key(|(_, object)| std::cmp::Reverse(object.stored_len())),
        }
        objects.iter().for_each(|(name, object)| sum.add(name, object));
        read += 1;
        if options.json {
            documents.push(document(path, &reader, &objects)?);
        } else if options.csv {
            print_csv(&mut out, &objects, several.then_some(path), read == 1)?;
        } else {
            if several {
                writeln!(out, "{}{}:", if read > 1 { "\n" } else { "" }, human::path(path))?;
            }
            let mut rows = if options.all { unfolded(&objects) } else { folded(&objects) };
            if options.sort == Sort::Size {
                rows.sort_by_key(|row| std::cmp::Reverse(row.stored));
            }
            print_table(&mut out, &rows)?;
            print_totals(&mut out, &reader, &objects)?;
        }
        Ok(FINE)
    });
    if options.json && !documents.is_empty() {
        // One file is one document, as ever; several are a list.
        let all = if paths.len() == 1 { documents.remove(0) } else { Json::Array(documents) };
        serde_json::to_writer_pretty(&mut out, &all).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if read > 1 && !options.csv {
        writeln!(out, "\n{read} files: {}", sum.line())?;
    }
    out.flush()?;
    outcome
}

/// Tensors, elements, weights, decoded bytes and bytes in the file.
#[derive(Default, Clone, Copy)]
struct Total {
    tensors: u64,
    elements: u64,
    /// Elements of weights.
    params: u64,
    /// Bits in the file that weights take.
    param_bits: u64,
    bytes: u64,
    stored: u64,
}

impl Total {
    fn add(&mut self, name: &str, object: &Object) {
        let elements = object.elements().unwrap_or(u64::MAX);
        self.tensors += 1;
        self.elements = self.elements.saturating_add(elements);
        if quantization::is_weight(name, object) {
            self.params = self.params.saturating_add(elements);
            self.param_bits = self.param_bits.saturating_add(object.stored_len().saturating_mul(8));
        }
        self.bytes = self.bytes.saturating_add(object.byte_len());
        self.stored = self.stored.saturating_add(object.stored_len());
    }

    fn json(self) -> Json {
        json!({
            "tensors": self.tensors,
            "elements": self.elements,
            "parameters": self.params,
            "bytes": self.bytes,
            "stored_bytes": self.stored,
        })
    }

    /// `104 tensors, 22.7 M params, 90.9 MB`; what is stored compressed has two sizes.
    fn line(self) -> String {
        let tensors = human::counted(self.tensors, "tensor");
        let params = human::short(self.params);
        let in_file = match self.bytes == self.stored {
            true => String::new(),
            false => format!(" ({} in the file)", human::bytes(self.stored)),
        };
        format!("{tensors}, {params} params, {}{in_file}", human::bytes(self.bytes))
    }
}

fn totals<'a>(objects: &[(&str, &'a Object)]) -> (Total, BTreeMap<Untrusted<'a>, Total>) {
    let (mut all, mut by_dtype) = (Total::default(), BTreeMap::<Untrusted<'a>, Total>::new());
    for (name, object) in objects {
        all.add(name, object);
        by_dtype.entry(dtype(object)).or_default().add(name, object);
    }
    (all, by_dtype)
}

/// A column that is the same on all rows says nothing there.
fn varies<'a>(rows: &'a [Row<'_>], text: impl Fn(&'a Object) -> Untrusted<'a>) -> bool {
    rows.windows(2).any(|pair| text(pair[0].object) != text(pair[1].object))
}

/// The layout, where the type does not say it already as it does for GGUF blocks.
fn layout(object: &Object) -> Untrusted<'_> {
    match &object.layout {
        Layout::Other(name) if name.contains('.') => Layout::Dense.name().into(),
        other => other.name().into(),
    }
}

fn print_table(out: &mut impl Write, rows: &[Row<'_>]) -> std::io::Result<()> {
    let mut columns = vec![("name", Align::Left), ("shape", Align::Left), ("dtype", Align::Left)];
    let layouts =
        varies(rows, layout) || rows.iter().any(|row| layout(row.object) != Layout::Dense.name().into());
    let encodings = varies(rows, encoding);
    if layouts {
        columns.push(("layout", Align::Left));
    }
    columns.push(("size", Align::Right));
    if encodings {
        columns.push(("encoding", Align::Left));
    }
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            human::escaped(&row.name).into_owned(),
            match row.count {
                1 => human::shape(&row.object.shape),
                count => format!("{} × {}", human::count(count), human::shape(&row.object.shape)),
            },
            dtype(row.object).line().into_owned(),
        ];
        if layouts {
            cells.push(human::escaped(row.object.layout.name()).into_owned());
        }
        cells.push(human::bytes(row.stored));
        if encodings {
            cells.push(encoding(row.object).line().into_owned());
        }
        table.add(cells);
    }
    table.print(out, table::width())
}

fn print_totals(out: &mut impl Write, reader: &Reader, objects: &[(&str, &Object)]) -> Result<(), Failure> {
    let (all, by_dtype) = totals(objects);
    writeln!(out)?;
    if by_dtype.len() > 1 {
        for (dtype, total) in by_dtype {
            let tensors = human::counted(total.tensors, "tensor");
            let elements = human::counted_short(total.elements, "element");
            let dtype = dtype.line();
            writeln!(out, "{dtype:<12} {tensors}, {elements}, {}", human::bytes(total.stored))?;
        }
    }
    let per_weight = all.param_bits as f64 / all.params.max(1) as f64;
    let quantized = reader.format() == Format::Gguf
        || objects.iter().any(|(_, object)| quantization::is_quantized(object));
    let bits = match quantized && all.params > 0 {
        true => format!(", {per_weight:.2} bits per weight"),
        false => String::new(),
    };
    writeln!(out, "{:<12} {}{bits}", "total", all.line())?;
    for scheme in quantization::schemes(reader)? {
        writeln!(out, "{:<12} {}", "quantized", scheme.line())?;
    }
    let mut stored = describe::format_name(reader.format()).to_owned();
    let first = objects.first().map_or(Untrusted::from(""), |(_, object)| encoding(object));
    if !matches!(first.json(), "" | "raw") && objects.iter().all(|(_, object)| encoding(object) == first) {
        stored.push_str(&format!(", {} compression", first.line()));
    }
    writeln!(out, "{:<12} {stored}, {}", "format", describe::checksums(objects))?;
    if let Some(dead @ 1..) = reader.catalog().dead_bytes() {
        writeln!(
            out,
            "{:<12} {}, left by edits; `ztensor compact` reclaims them",
            "unused",
            human::bytes(dead)
        )?;
    }
    if reader.is_limited_by_journal() {
        writeln!(
            out,
            "{:<12} an edit is under way or was interrupted: this is the state that the journal beside the \
             file names; `ztensor repair` makes it final",
            "journal",
        )?;
    }
    if !reader.attributes().is_empty() {
        writeln!(out, "\nmetadata")?;
        let width = table::width().unwrap_or(usize::MAX);
        for (name, value) in reader.attributes() {
            let line = format!("  {} = {}", Untrusted::from(&**name).line(), preview(value));
            writeln!(out, "{}", table::cut(&line, width))?;
        }
    }
    Ok(())
}

fn document(path: &Path, reader: &Reader, objects: &[(&str, &Object)]) -> ztensor::Result<Json> {
    let (all, by_dtype) = totals(objects);
    let tensors: Vec<Json> = objects.iter().map(|(name, object)| json::object(name, object)).collect();
    let by_dtype: BTreeMap<_, _> =
        by_dtype.into_iter().map(|(dtype, total)| (dtype.json(), total.json())).collect();
    let quantized: Vec<Json> = quantization::schemes(reader)?.iter().map(quantization::Total::json).collect();
    Ok(json!({
        "file": path.display().to_string(),
        "format": reader.format().name(),
        "tensors": tensors,
        "totals": all.json(),
        "by_dtype": by_dtype,
        "quantized": quantized,
        "dead_bytes": reader.catalog().dead_bytes(),
        "limited_by_journal": reader.is_limited_by_journal(),
        "metadata": json::attributes(reader.attributes()),
    }))
}

fn print_csv(
    out: &mut impl Write,
    objects: &[(&str, &Object)],
    file: Option<&Path>,
    header: bool,
) -> Result<(), Failure> {
    let first =
        file.map(|path| format!("{},", Untrusted::from(&*path.to_string_lossy()).csv())).unwrap_or_default();
    if header {
        let first = if file.is_some() { "file," } else { "" };
        writeln!(out, "{first}name,shape,dtype,layout,bytes,stored_bytes,encoding")?;
    }
    for (name, object) in objects {
        let shape = object.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        writeln!(
            out,
            "{first}{},{shape},{},{},{},{},{}",
            Untrusted::from(*name).csv(),
            dtype(object).csv(),
            Untrusted::from(object.layout.name()).csv(),
            object.byte_len(),
            object.stored_len(),
            encoding(object).csv()
        )?;
    }
    Ok(())
}
