//! `merge`, `append`, `remove`, `compact` and `repair`.

use crate::support::{Place, fixture};

#[test]
fn files_are_merged() {
    let place = Place::new();
    place.model("m.zt");
    place.single("a.zt", "extra", &[1.0]);
    place.run(&["merge", "m.zt", "a.zt", "-o", "all.zt"]).ends(0);
    place.run(&["convert", "m.zt", "a.zt", "-o", "same.zt"]).ends(0);
    place.run(&["diff", "all.zt", "same.zt"]).ends(0);
    let before = place.list();
    place.run(&["merge", "m.zt", "all.zt", "-o", "x.zt"]).ends(2);
    place.run(&["merge", "m.zt", "-o", "x.zt"]).ends(2);
    place.run(&["merge", "m.zt", "absent.zt", "-o", "x.zt"]).fails(4, &["absent.zt"]);
    let npz = fixture("npz/shapes.npz");
    place.run(&["merge", "m.zt", npz.to_str().unwrap(), "-o", "x.zt"]).ends(3);
    place.run(&["merge", "m.zt", "a.zt", "-o", "all.zt"]).fails(2, &["--force"]);
    assert_eq!(place.list(), before);
}

#[test]
fn tensors_are_appended_and_removed() {
    let place = Place::new();
    place.model("m.zt");
    place.single("a.zt", "extra", &[1.0, 2.0]);
    place.run(&["convert", "a.zt", "-o", "a.safetensors"]).ends(0);
    let run = place.run(&["append", "m.zt", "--from", "a.safetensors", "-l", "3"]).ends(0);
    assert!(run.err.starts_with("m.zt: 1 tensor added, now "), "{}", run.err);
    let reader = ztensor::open(place.path("m.zt")).unwrap();
    assert_eq!(reader.len(), 5);
    assert_eq!(reader.read_as::<f32>("extra").unwrap(), [1.0, 2.0]);
    drop(reader);
    let bytes = std::fs::read(place.path("m.zt")).unwrap();
    place.run(&["append", "m.zt", "--from", "a.zt"]).ends(2);
    place.run(&["append", "m.zt", "--from", "absent.zt"]).fails(4, &["absent.zt"]);
    place.run(&["append", "absent.zt", "--from", "a.zt"]).fails(4, &["absent.zt"]);
    place.run(&["append", "a.safetensors", "--from", "m.zt"]).ends(3);
    place.run(&["append", "m.zt", "--from", "a.zt", "--only", "no*"]).fails(2, &["no*"]);
    assert_eq!(std::fs::read(place.path("m.zt")).unwrap(), bytes, "a failed append changes nothing");
    place.run(&["remove", "m.zt", "extra", "norm", "-o", "less.zt"]).ends(0);
    assert_eq!(ztensor::open(place.path("less.zt")).unwrap().len(), 3);
    place.run(&["remove", "m.zt", "absent", "-o", "x.zt"]).fails(2, &["absent"]);
    place.run(&["remove", "m.zt", "norm", "-o", "less.zt"]).fails(2, &["--force"]);
    place.run(&["remove", "m.zt", "-o", "x.zt"]).ends(2);
    assert_eq!(place.list(), ["a.safetensors", "a.zt", "less.zt", "m.zt"]);
}

#[test]
fn dead_bytes_are_dropped() {
    let place = Place::new();
    place.model("m.zt");
    let before = std::fs::read(place.path("m.zt")).unwrap();
    place.single("big.zt", "big", &[0.5; 10_000]);
    place.run(&["append", "m.zt", "--from", "big.zt", "-q"]).ends(0);
    ztensor::edit::replace_tensor_as(place.path("m.zt"), "layers.0.weight", &[7f32; 24]).unwrap();
    assert!(place.run(&["info", "m.zt"]).ends(0).out.contains("`ztensor compact` reclaims them"));
    place.run(&["compact", "m.zt", "-o", "c.zt"]).ends(0);
    place.run(&["diff", "m.zt", "c.zt"]).ends(0);
    place.run(&["compact", "m.zt", "-o", "c.zt"]).fails(2, &["--force"]);
    place.run(&["compact", "m.zt"]).ends(0);
    assert_eq!(std::fs::read(place.path("m.zt")).unwrap(), std::fs::read(place.path("c.zt")).unwrap());
    assert!(!place.run(&["info", "m.zt"]).ends(0).out.contains("dead"));
    place.run(&["compact", "absent.zt"]).fails(4, &["absent.zt"]);
    std::fs::write(place.path("bad.zt"), &before[..40]).unwrap();
    place.run(&["compact", "bad.zt"]).fails(3, &["bad.zt"]);
    assert_eq!(std::fs::read(place.path("bad.zt")).unwrap(), &before[..40]);
}

#[test]
fn interrupted_edits_are_undone() {
    let place = Place::new();
    place.model("m.zt");
    let run = place.run(&["repair", "m.zt"]).ends(0);
    assert_eq!(run.err, "m.zt: nothing to repair\n");
    let whole = std::fs::read(place.path("m.zt")).unwrap();
    // An append that never ended, as a crash would leave it.
    let mut writer = ztensor::Writer::append(place.path("m.zt")).unwrap();
    writer.add("more", &[8 << 20], &vec![1f32; 8 << 20]).unwrap(); // more than any buffer holds back
    for (from, to) in [("m.zt", "torn.zt"), ("m.zt.journal", "torn.zt.journal")] {
        std::fs::copy(place.path(from), place.path(to)).unwrap();
    }
    drop(writer);
    assert_ne!(std::fs::read(place.path("torn.zt")).unwrap(), whole);
    let run = place.run(&["repair", "torn.zt"]).ends(0);
    assert!(run.err.starts_with("torn.zt: back at its last good state; "), "{}", run.err);
    assert_eq!(std::fs::read(place.path("torn.zt")).unwrap(), whole);
    assert_eq!(place.list(), ["m.zt", "torn.zt"]);
    // What no edit of ours leaves behind is not guessed at, and not touched.
    let strange = [&whole[..], &[1; 100]].concat();
    std::fs::write(place.path("m.zt"), &strange).unwrap();
    place.run(&["info", "m.zt"]).ends(3);
    place.run(&["repair", "m.zt"]).fails(3, &["m.zt"]);
    assert_eq!(std::fs::read(place.path("m.zt")).unwrap(), strange);
    std::fs::write(place.path("bad.zt"), "nothing to save here").unwrap();
    place.run(&["repair", "bad.zt"]).fails(3, &["bad.zt"]);
    place.run(&["repair", "absent.zt"]).fails(4, &["absent.zt"]);
}
