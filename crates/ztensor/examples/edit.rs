//! Writes a `.zt` file, appends to it and replaces a tensor in place. Every edit is atomic: a crash
//! at any instant leaves the old file or the new one.
//!
//! `cargo run -p ztensor --example edit -- model.zt`

use ztensor::{Checksum, Compression, Writer};

fn main() -> ztensor::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "model.zt".to_owned());
    let mut writer = Writer::create(&path)?;
    writer.add("weight", &[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
    writer
        .add_with("mask", &[1000], &[1u8; 1000])
        .compress(Compression::Zstd(3))
        .checksum(Checksum::Crc32c)
        .write()?;
    writer.finish()?;

    let mut writer = Writer::append(&path)?;
    writer.add("bias", &[2], &[0.5f32, 0.25])?;
    writer.finish()?;
    ztensor::edit::replace_tensor_as(&path, "weight", &[5f32, 6.0, 7.0, 8.0])?;

    let reader = ztensor::open(&path)?;
    println!("{:?}", reader.keys().collect::<Vec<_>>());
    println!("weight = {:?}", reader.view_as::<f32>("weight")?); // zero-copy
    reader.verify_all(None)?; // compares every checksum
    Ok(())
}
