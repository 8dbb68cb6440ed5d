//! `id`: content ids.

use crate::support::Place;

#[test]
fn a_model_has_one_id_in_every_format() {
    let place = Place::new();
    place.model("m.zt");
    place.run(&["convert", "m.zt", "m.safetensors"]).ends(0);
    place.run(&["convert", "m.zt", "m.npz", "--drop-metadata"]).ends(0);
    place.run(&["convert", "m.zt", "m.zstn"]).ends(0);
    let out = place.run(&["id", "m.zt", "m.safetensors", "m.npz", "m.zstn"]).ends(0).out;
    let lines: Vec<(&str, &str)> = out.lines().map(|line| line.split_once("  ").unwrap()).collect();
    let names: Vec<&str> = lines.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, ["m.zt", "m.safetensors", "m.npz", "m.zstn"]);
    assert!(
        lines.iter().all(|(id, _)| *id == lines[0].0 && id.starts_with("b3:") && id.len() == 67),
        "{out}"
    );
    let library = ztensor::open(place.path("m.zt")).unwrap().content_id().unwrap();
    assert_eq!(lines[0].0, library.to_string());
}

#[test]
fn tensors_and_json() {
    let place = Place::new();
    place.model("m.zt");
    place.single("other.zt", "w", &[1.0]);
    let out = place.run(&["id", "m.zt", "--per-tensor"]).ends(0).out;
    let reader = ztensor::open(place.path("m.zt")).unwrap();
    let ids = reader.content_ids(ztensor::id::Evidence::Bytes, None).unwrap();
    let mut expected: Vec<String> = ids.tensors.iter().map(|(name, id)| format!("{id}  {name}")).collect();
    expected.push(format!("{}  m.zt", ids.model));
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);

    let one = place.run(&["id", "m.zt", "--json"]).ends(0).json();
    assert_eq!(one, serde_json::json!({"file": "m.zt", "id": ids.model.to_string()}));
    let two = place.run(&["id", "m.zt", "other.zt", "--json", "--per-tensor"]).ends(0).json();
    assert_eq!(two[0]["tensors"]["norm"], reader.tensor_content_id("norm").unwrap().to_string());
    assert_eq!(two[1]["file"], "other.zt");
}

#[test]
fn pipes_stored_checksums_and_files_that_have_no_id() {
    let place = Place::new();
    place.model("m.zt");
    let id = place.run(&["id", "m.zt"]).ends(0).out;
    let bytes = std::fs::read(place.path("m.zt")).unwrap();
    let piped = place.command(&["id", "-"]).write_stdin(bytes).output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), id.replace("m.zt", "-"));

    place.run(&["convert", "m.zt", "checked.zt", "--checksum", "blake3"]).ends(0);
    let stored = place.run(&["id", "checked.zt", "--stored"]).ends(0).out;
    assert_eq!(stored, id.replace("m.zt", "checked.zt"));
    let verified = place.run(&["verify", "checked.zt"]).ends(0).out;
    assert!(verified.contains("4 tensors"), "{verified}");

    std::fs::write(place.path("bad.zt"), [0; 100]).unwrap();
    let run = place.run(&["id", "bad.zt", "m.zt"]).ends(3);
    assert_eq!(run.out, id);
    place.run(&["id", "none.zt"]).fails(4, &["none.zt"]);
}
