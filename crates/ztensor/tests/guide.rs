//! The examples of `docs/rust.md`, compiled and run: what stands between `show` and `end` is a block
//! of the page, in the same order. `UPDATE_DOCS=1 cargo test -p ztensor --test guide` writes them
//! into it.

use std::path::{Path, PathBuf};

use ztensor::{Result, Writer};

fn reading() -> Result<()> {
    let mut writer = Writer::create("model.zt")?;
    writer.add("weights", &[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
    writer.finish()?;
    // show
    let reader = ztensor::open("model.zt")?;
    for (name, object) in reader.objects() {
        println!("{name}: {:?} {} {:?}", object.shape, object.layout, object.dtype());
    }

    let view: &[f32] = reader.view_as("weights")?; // zero-copy (memory-mapped)
    let copy: Vec<f32> = reader.read_as("weights")?; // owned; checksums are compared
    let rows: Vec<f32> = reader.read_rows_as("weights", 1..2)?; // only what is needed
    // end
    assert_eq!((view, &rows[..]), (&copy[..], &copy[2..]));
    assert_eq!(bytemuck::cast_slice::<_, u8>(&rows), reader.read_rows("weights", 1..2)?);
    assert!(reader.read_rows_as::<f64>("weights", 1..2).is_err());
    assert!(reader.read_rows_as::<f32>("weights", 1..3).is_err());
    Ok(())
}

fn limits() -> Result<()> {
    Writer::create("untrusted.zt")?.finish()?;
    // show
    use ztensor::{OpenOptions, source::MapMode};

    let reader = OpenOptions::default()
        .max_component(1 << 30) // for one tensor
        .max_total(8 << 30) // for one call
        .map(MapMode::Never)
        .open("untrusted.zt")?;
    // end
    assert!(reader.is_empty());
    Ok(())
}

fn writing() -> Result<()> {
    // show
    use ztensor::{Checksum, Compression, Writer};

    let mut writer = Writer::create("model.zt")?;
    writer.set_attribute("license", "apache-2.0");
    writer.add("embedding", &[2, 3], &[0f32; 6])?;
    writer.tie("head", "embedding")?; // a second name for the same bytes
    writer
        .add_with("mask", &[1000], &[1u8; 1000])
        .compress(Compression::Zstd(3))
        .checksum(Checksum::Sha256)
        .write()?;
    writer.add_csr("adjacency", [2, 3], &[1.0f32, 2.0], &[0i32, 2], &[0i32, 1, 2])?;
    let size = writer.finish()?;

    let adjacency = ztensor::open("model.zt")?.read_owned("adjacency")?;
    assert_eq!(adjacency.into_dense::<f32>()?.data, [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
    // end
    assert_eq!(size, std::fs::metadata("model.zt").unwrap().len());
    Ok(())
}

fn packing() -> Result<()> {
    let header = br#"{"w":{"dtype":"F32","shape":[40,10],"data_offsets":[0,1600]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + 1600, 0);
    std::fs::write("model.safetensors", &bytes).unwrap();
    // show
    use ztensor::zstn::{PackOptions, UnpackOptions, inspect, pack, unpack};

    let options = PackOptions { effort: ztensor::Effort::Fast, ..Default::default() };
    let stats = pack("model.safetensors", "model.zstn", &options)?;
    println!("{} tensors, {} of {} bytes", stats.tensors, stats.packed_len, stats.original_len);

    let rows: Vec<u8> = ztensor::open("model.zstn")?.read_rows("w", 7..9)?;
    let info = inspect("model.zstn")?; // the JSON header, and each tensor's stored size
    println!("{}: {} bytes", info.tensors[0].name, info.tensors[0].stored_len);

    unpack("model.zstn", "restored.safetensors", &UnpackOptions::default())?;
    // end
    assert_eq!(rows, [0; 80]);
    assert_eq!((stats.tensors, stats.opaque), (1, false));
    assert!(stats.packed_len < stats.original_len);
    assert_eq!(info.tensors[0].name, "w");
    assert_eq!(std::fs::read("restored.safetensors").unwrap(), bytes);
    Ok(())
}

fn deltas() -> Result<()> {
    for step in 0..3 {
        let mut writer = Writer::create(format!("step{step}.zt"))?;
        let data: Vec<f32> = (0..5000).map(|n| (n as f32).sin() + step as f32 * 1e-6).collect();
        writer.add("w", &[50, 100], &data)?;
        writer.finish()?;
    }
    // show
    use ztensor::model_delta::{ApplyOptions, MakeOptions, apply_chain, info, make};

    let options = MakeOptions::default();
    make("step0.zt", "step1.zt", "1.z4dm", &options)?;
    make("step1.zt", "step2.zt", "2.z4dm", &options)?;
    for change in info("1.z4dm")?.changes {
        println!("{}: {} ({} of {} bytes)", change.name, change.how, change.stored_len, change.len);
    }

    let deltas = ["1.z4dm", "2.z4dm"];
    apply_chain("step0.zt", &deltas, "restored.zt", &ApplyOptions::default())?;
    // end
    assert_eq!(std::fs::read("restored.zt").unwrap(), std::fs::read("step2.zt").unwrap());
    Ok(())
}

fn editing() -> Result<()> {
    let mut writer = Writer::create("model.zt")?;
    writer.add("weights", &[4], &[1f32, 2.0, 3.0, 4.0])?;
    writer.add("unused", &[1], &[0u8])?;
    writer.finish()?;
    // show
    use ztensor::Writer;

    let mut writer = Writer::append("model.zt")?; // a second editor is refused
    writer.add("bias", &[2], &[0.5f32, 0.25])?;
    writer.finish()?; // until here, readers see the file as it was

    ztensor::edit::replace_tensor_as("model.zt", "weights", &[5f32, 6.0, 7.0, 8.0])?;
    ztensor::remove_tensors("model.zt", "model.zt", &["unused"])?;
    let sizes = ztensor::compact("model.zt")?;
    println!("{} bytes, {} before", sizes.after, sizes.before);
    ztensor::repair("model.zt")?; // rolls back an edit that a crash interrupted; the next edit does it, too
    // end
    assert!(sizes.after <= sizes.before);
    let reader = ztensor::open("model.zt")?;
    assert_eq!(reader.view_as::<f32>("weights")?, [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["weights", "bias"]);
    Ok(())
}

fn errors() -> Result<()> {
    // show
    use ztensor::ErrorKind;

    match ztensor::open("missing.zt") {
        Ok(reader) => println!("{} tensors", reader.len()),
        Err(error) => match error.kind() {
            ErrorKind::Io => println!("check the path and the permissions: {error}"),
            ErrorKind::Corrupt => println!("download it again: {error} (rule {:?})", error.rule()),
            ErrorKind::Limit => println!("raise the limit if you trust the file: {error}"),
            _ => println!("{error}"),
        },
    }
    // end
    assert_eq!(ztensor::open("missing.zt").unwrap_err().kind(), ErrorKind::Io);
    Ok(())
}

#[test]
fn every_example_runs() {
    // The examples name files without a folder, so this is the only test of the program that
    // depends on where it runs.
    let folder = tempfile::tempdir().unwrap();
    let examples = [reading, limits, writing, packing, deltas, editing, errors];
    for (number, example) in examples.into_iter().enumerate() {
        let own = folder.path().join(number.to_string());
        std::fs::create_dir(&own).unwrap();
        std::env::set_current_dir(own).unwrap();
        example().unwrap();
    }
    std::env::set_current_dir("/").unwrap();
}

/// What stands between `show` and `end` in this file, without its indentation.
fn shown() -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in include_str!("guide.rs").lines() {
        match line {
            "    // show" => block = Some(String::new()),
            "    // end" => blocks.extend(block.take()),
            line => {
                if let Some(text) = &mut block {
                    text.push_str(line.strip_prefix("    ").unwrap_or(line));
                    text.push('\n');
                }
            }
        }
    }
    blocks
}

#[test]
fn the_page_shows_the_examples() {
    const START: &str = "```rust\n";
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rust.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut blocks = shown().into_iter();
    let mut parts = page.split(START);
    let mut made = parts.next().unwrap().to_owned();
    for part in parts {
        let (_, rest) = part.split_once("```").unwrap();
        let block = blocks.next().expect("the page has more blocks than there are examples");
        made.push_str(&format!("{START}{block}```{rest}"));
    }
    assert_eq!(blocks.next(), None, "the page has fewer blocks than there are examples");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).unwrap();
    } else {
        assert!(made == page, "docs/rust.md is not up to date: run with UPDATE_DOCS=1");
    }
}
