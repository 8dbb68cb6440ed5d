//! `info`: what a file holds.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value as Json, json};
use ztensor::{Object, Reader};

use super::Common;
use crate::args::{Info, Sort};
use crate::describe::{dtype, encoding, preview};
use crate::failure::{FINE, Outcome};
use crate::fold::{Row, folded, unfolded};
use crate::output::Untrusted;
use crate::{human, json};

pub fn run(options: &Info, common: Common) -> Outcome {
    let reader = common.open(&options.file)?;
    let mut objects = options.which.choose(&reader)?;
    match options.sort {
        Sort::File => {}
        Sort::Name => objects.sort_by_key(|(name, _)| *name),
        Sort::Size => objects.sort_by_key(|(_, object)| std::cmp::Reverse(object.stored_len())),
    }
    let mut out = crate::output::stdout();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &document(options, &reader, &objects))
            .map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if options.csv {
        print_csv(&mut out, &objects)?;
    } else {
        let mut rows = if options.all { unfolded(&objects) } else { folded(&objects) };
        if options.sort == Sort::Size {
            rows.sort_by_key(|row| std::cmp::Reverse(row.stored));
        }
        print_table(&mut out, &rows)?;
        print_totals(&mut out, &reader, &objects)?;
    }
    out.flush()?;
    Ok(FINE)
}

/// Tensors, elements, decoded bytes and bytes in the file.
#[derive(Default, Clone, Copy)]
struct Total {
    tensors: u64,
    elements: u64,
    bytes: u64,
    stored: u64,
}

impl Total {
    fn add(&mut self, object: &Object) {
        self.tensors += 1;
        self.elements = self.elements.saturating_add(object.elements().unwrap_or(u64::MAX));
        self.bytes = self.bytes.saturating_add(object.byte_len());
        self.stored = self.stored.saturating_add(object.stored_len());
    }

    fn json(self) -> Json {
        json!({"tensors": self.tensors, "elements": self.elements, "bytes": self.bytes, "stored_bytes": self.stored})
    }
}

fn totals<'a>(objects: &[(&str, &'a Object)]) -> (Total, BTreeMap<Untrusted<'a>, Total>) {
    let (mut all, mut by_dtype) = (Total::default(), BTreeMap::<Untrusted<'a>, Total>::new());
    for (_, object) in objects {
        all.add(object);
        by_dtype.entry(dtype(object)).or_default().add(object);
    }
    (all, by_dtype)
}

fn print_table(out: &mut impl Write, rows: &[Row<'_>]) -> std::io::Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["name", "count", "shape", "dtype", "layout", "size", "encoding"]);
    for row in rows {
        table.add_row([
            &*Untrusted::from(&*row.name).line(),
            &(if row.count > 1 { format!("{} ×", human::count(row.count)) } else { String::new() }),
            &human::shape(&row.object.shape),
            &*dtype(row.object).line(),
            &*Untrusted::from(row.object.layout.name()).line(),
            &human::bytes(row.stored),
            &*encoding(row.object).line(),
        ]);
    }
    writeln!(out, "{table}")
}

fn print_totals(out: &mut impl Write, reader: &Reader, objects: &[(&str, &Object)]) -> std::io::Result<()> {
    let (all, by_dtype) = totals(objects);
    writeln!(out)?;
    for (dtype, total) in by_dtype {
        let (tensors, elements) = (human::count(total.tensors), human::count(total.elements));
        let dtype = dtype.line();
        writeln!(out, "{dtype:<12} {tensors} tensors, {elements} elements, {}", human::bytes(total.stored))?;
    }
    writeln!(
        out,
        "{:<12} {} tensors, {} parameters, {} ({} in the file), {}",
        "total",
        human::count(all.tensors),
        human::count(all.elements),
        human::bytes(all.bytes),
        human::bytes(all.stored),
        reader.format()
    )?;
    if let Some(dead @ 1..) = reader.catalog().dead_bytes() {
        writeln!(
            out,
            "{:<12} {} left behind by edits; `ztensor compact` drops them",
            "dead",
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
        for (name, value) in reader.attributes() {
            writeln!(out, "  {} = {}", Untrusted::from(&**name).line(), preview(value))?;
        }
    }
    Ok(())
}

fn document(options: &Info, reader: &Reader, objects: &[(&str, &Object)]) -> Json {
    let (all, by_dtype) = totals(objects);
    let tensors: Vec<Json> = objects.iter().map(|(name, object)| json::object(name, object)).collect();
    let by_dtype: BTreeMap<_, _> =
        by_dtype.into_iter().map(|(dtype, total)| (dtype.json(), total.json())).collect();
    json!({
        "file": options.file.display().to_string(),
        "format": reader.format().name(),
        "tensors": tensors,
        "totals": all.json(),
        "by_dtype": by_dtype,
        "dead_bytes": reader.catalog().dead_bytes(),
        "limited_by_journal": reader.is_limited_by_journal(),
        "metadata": json::attributes(reader.attributes()),
    })
}

fn print_csv(out: &mut impl Write, objects: &[(&str, &Object)]) -> std::io::Result<()> {
    writeln!(out, "name,shape,dtype,layout,bytes,stored_bytes,encoding")?;
    for (name, object) in objects {
        let shape = object.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        writeln!(
            out,
            "{},{shape},{},{},{},{},{}",
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
