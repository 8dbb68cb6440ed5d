//! `scan`, and `--strict` of the commands that read.

use crate::support::Place;

const EVIL: &[u8] = b"cos\nsystem\n(S'touch owned \\x1b[31m'\ntR.";

/// A pickle of a NumPy array, with a call beside it.
fn with_array(call: &[u8]) -> Vec<u8> {
    let dtype = b"cnumpy\ndtype\n(Vu1\ntR";
    let array = [&b"cnumpy.core.numeric\n_frombuffer\n(C\x02\x07\x08"[..], dtype, b"(K\x02tVC\ntR"].concat();
    [&b"\x80\x04}(Vw\n"[..], &array, b"Vx\n", call, b"u."].concat()
}

#[test]
fn findings_decide_the_exit_code() {
    let place = Place::new();
    let write = |name: &str, bytes: &[u8]| std::fs::write(place.path(name), bytes).unwrap();
    write("evil.pkl", EVIL);
    write("odd.pkl", b"\x80\x04cmy_package\nThing\n)R.");
    write("fine.pkl", b"\x80\x04ccollections\nOrderedDict\n)R.");
    let run = place.run(&["scan", "evil.pkl"]).ends(1);
    assert!(run.out.contains("dangerous"), "{}", run.out);
    assert!(run.out.contains("os.system(\"touch owned"), "{}", run.out);
    assert!(!run.out.contains('\u{1b}'), "{}", run.out);
    place.run(&["scan", "odd.pkl"]).ends(0);
    place.run(&["scan", "odd.pkl", "--strict"]).ends(1);
    let run = place.run(&["scan", "fine.pkl", "--strict"]).ends(0);
    assert!(!run.out.contains("OrderedDict"), "{}", run.out);
    assert!(place.run(&["scan", "fine.pkl", "--all"]).ends(0).out.contains("collections.OrderedDict"));
    // The worst of many; a missing file alone is an I/O error.
    place.run(&["scan", "fine.pkl", "evil.pkl", "missing.pkl"]).ends(1);
    place.run(&["scan", "fine.pkl", "missing.pkl"]).ends(4);

    std::fs::create_dir_all(place.path("folder/inner")).unwrap();
    write("folder/inner/weights.txt", EVIL);
    write("folder/readme.md", b"# Model\n");
    let json = place.run(&["scan", "folder", "--json"]).ends(1).json();
    assert_eq!(json["totals"]["files"], 2);
    assert_eq!(json["totals"]["dangerous"], 1);
    let finding = &json["files"][0]["findings"][0];
    assert_eq!(finding["what"], "os.system");
    assert_eq!(finding["severity"], "dangerous");
    assert_eq!(finding["calls"], 1);
}

#[test]
fn strict_refuses_what_reading_warns_of() {
    let place = Place::new();
    let file = with_array(b"cos\nsystem\n(Vid\ntR");
    std::fs::write(place.path("model.pkl"), &file).unwrap();
    let run = place.run(&["info", "model.pkl"]).ends(0);
    assert!(run.err.starts_with("warning: model.pkl: ") && run.err.contains("os.system"), "{}", run.err);
    place.run(&["verify", "model.pkl"]).ends(0);
    place.run(&["info", "model.pkl", "--strict"]).fails(3, &["os.system", "pickle.unsafe"]);
    place.run(&["verify", "model.pkl", "--strict"]).fails(3, &["os.system"]);
    place.run(&["convert", "model.pkl", "-o", "out.zt", "--strict"]).fails(3, &["os.system"]);
    assert!(!place.path("out.zt").exists());
    place.run(&["convert", "model.pkl", "-o", "out.zt"]).ends(0);
    std::fs::write(place.path("fine.pkl"), with_array(b"N")).unwrap();
    let run = place.run(&["info", "fine.pkl", "--strict"]).ends(0);
    assert!(run.err.is_empty(), "{}", run.err);
}
