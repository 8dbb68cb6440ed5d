//! A file written and read again, and every sample file opened.

use ztensor::{Checksum, Compression, Reader, Writer};

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    let weights: Vec<f32> = (0..10_000).map(|n| n as f32 / 7.0).collect();
    let mut writer = Writer::create(&path).unwrap();
    writer.set_attribute("author", "test");
    writer.add("weights", &[100, 100], &weights).unwrap();
    writer
        .add_with("packed", &[10_000], &weights)
        .compress(Compression::Zstd(3))
        .checksum(Checksum::Crc32c)
        .write()
        .unwrap();
    writer.add_csr("sparse", [2, 3], &[1.0f64, 2.0], &[0i32, 2], &[0u8, 1, 2]).unwrap();
    writer.add("scalar", &[], &[3u8]).unwrap();
    writer.add::<f32>("empty", &[0, 4], &[]).unwrap();
    writer.tie("tied", "weights").unwrap();
    let size = writer.finish().unwrap();
    assert_eq!(size, std::fs::metadata(&path).unwrap().len());

    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.view_as::<f32>("weights").unwrap(), weights);
    assert_eq!(reader.read_as::<f32>("packed").unwrap(), weights);
    assert_eq!(reader.view("tied").unwrap().as_ptr(), reader.view("weights").unwrap().as_ptr());
    let dense = reader.read_object("sparse").unwrap().into_dense::<f64>().unwrap();
    assert_eq!(dense.data, [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
    assert!(reader.get("scalar").unwrap().shape.is_empty());
    assert!(reader.view_as::<f32>("empty").unwrap().is_empty());
    assert_eq!(reader.attributes()["author"].as_text(), Some("test"));
    for file in [
        "append_base",
        "appended",
        "dtypes",
        "legacy_v01",
        "raw_crc32c",
        "sparse",
        "zstd19_sha256",
        "zstd3",
        "zstd_crc32c",
    ] {
        let path = format!("{}/tests/data/zt/{file}.zt", env!("CARGO_MANIFEST_DIR"));
        let reader = Reader::open(&path).unwrap();
        for (name, object) in reader.objects() {
            let tensor = reader.read_owned(name).unwrap();
            println!(
                "{file} {name} {:?} {} {:?} {:?}",
                object.shape,
                object.layout,
                tensor.dtype(),
                object.attributes
            );
        }
    }
}
