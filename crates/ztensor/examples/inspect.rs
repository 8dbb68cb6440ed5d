//! Lists the tensors of a file of any format, local or remote.
//!
//! `cargo run -p ztensor --example inspect -- model.gguf`

fn main() -> ztensor::Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: inspect FILE");
        std::process::exit(2);
    };
    let reader = ztensor::open(&path)?; // headers only
    println!("{path}: {}, {} tensors", reader.format().name(), reader.len());
    for (name, object) in reader.objects() {
        let dtype = object.dtype().map_or("-", |dtype| dtype.name());
        println!(
            "{name}: {dtype} {:?} {}, {} bytes stored",
            object.shape,
            object.layout,
            object.stored_len()
        );
    }
    Ok(())
}
