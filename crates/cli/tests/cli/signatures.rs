//! `sign` and `verify --signature`.

use crate::support::Place;

const KEY: &str = include_str!("../data/p256.pem");
const PUBLIC: &str = include_str!("../data/p256.pub");

fn place() -> Place {
    let place = Place::new();
    std::fs::write(place.path("key.pem"), KEY).unwrap();
    std::fs::write(place.path("key.pub"), PUBLIC).unwrap();
    place
}

fn folder(place: &Place) {
    std::fs::create_dir_all(place.path("model/sub")).unwrap();
    place.model("model/m.zt");
    std::fs::write(place.path("model/config.json"), "{}").unwrap();
    std::fs::write(place.path("model/sub/notes.txt"), "notes").unwrap();
}

const VERIFY: [&str; 4] = ["--signature", "model.sig", "--key", "key.pub"];

#[test]
fn a_folder_verifies_until_a_file_changes() {
    let place = place();
    folder(&place);
    let verify = |more: &[&str]| place.run(&[&["verify", "model"], &VERIFY[..], more].concat());
    place.run(&["sign", "model", "--key", "key.pem", "-o", "model.sig"]).ends(0);
    assert_eq!(verify(&[]).ends(0).out, "model: OK (3 files as signed)\n");
    // Files of version control are no part of the model.
    std::fs::create_dir(place.path("model/.git")).unwrap();
    std::fs::write(place.path("model/.git/HEAD"), "x").unwrap();
    verify(&[]).ends(0);
    // Another file: the tensors are still those that were signed.
    std::fs::write(place.path("model/extra.py"), "print()").unwrap();
    let run = verify(&[]).ends(0);
    assert!(run.out.contains("OK (tensors as signed, b3:") && run.out.contains("not covered"), "{}", run.out);
    verify(&["--exact"]).fails(1, &["extra.py", "was not signed"]);
    std::fs::remove_file(place.path("model/extra.py")).unwrap();
    std::fs::write(place.path("model/config.json"), "[]").unwrap();
    verify(&["--exact"]).fails(1, &["config.json", "not the one that was signed"]);
    std::fs::remove_file(place.path("model/config.json")).unwrap();
    verify(&["--exact"]).fails(1, &["config.json", "is missing"]);
    std::fs::write(place.path("model/config.json"), "{}").unwrap();
    verify(&["--exact"]).ends(0);
    place.single("model/m.zt", "w", &[1.0]);
    verify(&[]).fails(1, &["m.zt", "tensors are not those that were signed"]);
}

#[test]
fn a_file_verifies_in_every_format() {
    let place = place();
    place.model("m.zt");
    place.run(&["sign", "m.zt", "--key", "key.pem"]).ends(0);
    let verify = |file: &str, more: &[&str]| {
        place.run(&[&["verify", file, "--signature", "m.zt.sig", "--key", "key.pub"], more].concat())
    };
    assert_eq!(verify("m.zt", &[]).ends(0).out, "m.zt: OK (1 file as signed)\n");
    place.run(&["convert", "m.zt", "m.safetensors"]).ends(0);
    place.run(&["compress", "m.zt", "-o", "small.zt"]).ends(0);
    for other in ["m.safetensors", "small.zt"] {
        assert!(verify(other, &[]).ends(0).out.contains("tensors as signed"));
        verify(other, &["--exact"]).ends(1);
    }
    place.single("other.zt", "w", &[1.0]);
    verify("other.zt", &[]).fails(1, &["other.zt"]);
    // The same signature again, and never over another file.
    let first = std::fs::read(place.path("m.zt.sig")).unwrap();
    place.run(&["sign", "m.zt", "--key", "key.pem"]).fails(2, &["exists already"]);
    place.run(&["sign", "m.zt", "--key", "key.pem", "--force"]).ends(0);
    assert_eq!(std::fs::read(place.path("m.zt.sig")).unwrap(), first);
}

#[cfg(unix)]
#[test]
fn keys_signatures_and_links_that_do_not_fit() {
    let place = place();
    folder(&place);
    place.run(&["sign", "model", "--key", "key.pem", "-o", "model.sig"]).ends(0);
    place.run(&["verify", "model", "--signature", "model.sig"]).ends(2);
    place
        .run(&["verify", "model", "--signature", "model.sig", "--key", "key.pem"])
        .fails(2, &["key.pem", "public"]);
    place.run(&["sign", "model", "--key", "key.pub", "-o", "x.sig"]).fails(2, &["key.pub", "private"]);
    place.run(&["sign", "https://example.org/m.zt", "--key", "key.pem"]).ends(2);
    let bundle = std::fs::read_to_string(place.path("model.sig")).unwrap();
    for (bad, code) in
        [(bundle.replace("\"sig\":\"ME", "\"sig\":\"MF"), 1), (String::new(), 3), ("{}".to_owned(), 3)]
    {
        std::fs::write(place.path("model.sig"), bad).unwrap();
        place.run(&[&["verify", "model"], &VERIFY[..]].concat()).ends(code);
    }
    std::os::unix::fs::symlink("/etc/hostname", place.path("model/link")).unwrap();
    place.run(&["sign", "model", "--key", "key.pem", "-o", "y.sig"]).fails(2, &["symbolic link"]);
    assert!(!place.list().contains(&"y.sig".to_owned()));
    place.run(&["sign", "model", "--key", "key.pem", "-o", "y.sig", "--allow-symlinks"]).ends(0);
    place.run(&["verify", "model", "--signature", "y.sig", "--key", "key.pub", "--exact"]).ends(0);
}
