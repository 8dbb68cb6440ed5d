use super::*;

fn whats(report: &Report, severity: Severity) -> Vec<&str> {
    let found = report.findings.iter().filter(|finding| finding.severity == severity);
    found.map(|finding| finding.what.as_str()).collect()
}

#[test]
fn every_way_to_name_a_function_is_followed() {
    let cases: &[(&str, &[u8])] = &[
        ("GLOBAL, protocol 0", b"cos\nsystem\n(S'id'\ntR."),
        ("GLOBAL, protocol 2", b"\x80\x02cos\nsystem\nU\x02id\x85R."),
        ("INST", b"(S'id'\nios\nsystem\n."),
        ("OBJ", b"(cos\nsystem\nS'id'\no."),
        ("NEWOBJ", b"\x80\x02cos\nsystem\nU\x02id\x85\x81."),
        ("NEWOBJ_EX", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85}\x92."),
        ("STACK_GLOBAL", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."),
        ("memoized", b"\x80\x04\x8c\x06system\x94\x8c\x02os\x940h\x00h\x010h\x01h\x00\x93\x8c\x02id\x85R."),
        ("escaped string", b"\x80\x04S'o\\x73'\nS'syste\\x6d'\n\x93S'id'\n\x85R."),
        ("escaped unicode", b"\x80\x04Vo\\u0073\nVsystem\n\x93Vid\n\x85R."),
        ("bytes as names", b"\x80\x04C\x02osC\x06system\x93C\x02id\x85R."),
    ];
    for (way, pickle) in cases {
        let report = scan_bytes("model.pkl", pickle);
        let found = report.findings.iter().find(|finding| finding.what == "os.system");
        let found = found.unwrap_or_else(|| panic!("{way}: {:?}", report.findings));
        assert_eq!((found.severity, found.kind), (Severity::Dangerous, FindingKind::Call), "{way}");
        assert_eq!(found.arguments.as_deref(), Some("\"id\""), "{way}");
    }
}

#[test]
fn damage_and_disguise_do_not_defeat_it() {
    let evil: &[u8] = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x85R.";
    let old: &[u8] = b"cposix\nsystem\n(S'id'\ntR.";
    let cat = |parts: &[&[u8]]| parts.concat();
    let nested = cat(&[b"\x80\x04B", &(evil.len() as u32).to_le_bytes(), evil, b"."]);
    let cases: &[(&str, Vec<u8>)] = &[
        ("truncated", evil[..evil.len() - 1].to_vec()),
        ("cut in the middle of what follows", cat(&[&evil[..evil.len() - 1], b"X\xff\xff\xff\x7fabc"])),
        ("an invalid opcode behind it", cat(&[&evil[..evil.len() - 1], b"\xff\xff\xff"])),
        ("an invalid opcode before it", cat(&[b"\x80\x04N\xff", &evil[2..]])),
        ("an empty stack before it", cat(&[b"\x80\x0400ttt", &evil[2..]])),
        ("garbage in front", cat(&[b"\0\0\0 not a pickle \0", evil])),
        ("garbage in front of protocol 0", cat(&[b"\0\0\0 not a pickle \0", old])),
        ("behind another pickle", cat(&[b"\x80\x04N.", evil])),
        ("behind another pickle and garbage", cat(&[b"\x80\x04N.", b"\0\0\0", evil])),
        ("nested", nested.clone()),
        ("a frame that is too long", cat(&[b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f", &evil[2..]])),
        ("protocol 0", old.to_vec()),
        ("protocol 0, cut", old[..old.len() - 2].to_vec()),
        ("a large integer first", cat(&[b"\x80\x04\x8b\x04\0\0\0\x01\x02\x03\x040", &evil[2..]])),
        ("setting a state of it", cat(&[&evil[..evil.len() - 1], b"}b."])),
        ("persistent ids", cat(&[b"\x80\x04Pid\n0\x8c\x01xQ0", &evil[2..]])),
        ("a protocol that does not exist", cat(&[b"\x80\x05\x80\x63", &evil[2..]])),
    ];
    for (way, file) in cases {
        for name in ["model.pkl", "model.bin", "model.txt", "model"] {
            let report = scan_bytes(name, file);
            assert_eq!(report.severity(), Severity::Dangerous, "{way} as {name}: {:?}", report.findings);
        }
    }
    // Names that are computed hide themselves.
    let report = scan_bytes("x.pkl", b"\x80\x04h\x05h\x06\x93.");
    assert_eq!(whats(&report, Severity::Dangerous), ["<computed>.<computed>"]);
}

#[test]
fn data_is_not_taken_for_pickles() {
    let mut numbers = Vec::new();
    let mut state = 1u64;
    for _ in 0..200_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        numbers.extend_from_slice(&state.to_be_bytes()[..4]);
    }
    for name in ["weights.bin", "data/0", "x.dat"] {
        let report = scan_bytes(name, &numbers);
        assert_eq!(report.severity(), Severity::Innocuous, "{:?}", report.findings);
    }
    for text in [
        "config\nvalue\nanother\n",
        "class Foo:\n    pass\n",
        "(see below)\n",
        "",
        "{\"a\": 1}",
        "VERSION\n1.0\n",
    ] {
        let report = scan_bytes("README", text.as_bytes());
        assert!(report.findings.is_empty(), "{text:?}: {:?}", report.findings);
    }
}

#[test]
fn work_is_bounded_by_the_size_of_the_file() {
    // Each of these starts a pickle, which would run to the end of the file.
    let bomb = b"\x80\x02N0".repeat(50_000);
    let report = scan_bytes("x.dat", &bomb);
    assert!(report.findings.len() < 10, "{:?}", report.findings.len());
    // One long text, and many names that refer to it.
    let mut bomb = b"\x80\x04X\x00\x00\x10\x00".to_vec();
    bomb.extend(b"a".repeat(1 << 20));
    bomb.extend(b"\x940");
    bomb.extend(b"h\0h\0\x930".repeat(100_000));
    bomb.push(b'.');
    let report = scan_bytes("x.pkl", &bomb);
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].what.len() < 1000);
    // Pickles in pickles.
    let mut bomb = b"\x80\x04N.".to_vec();
    for _ in 0..50 {
        bomb = [b"\x80\x04B", &(bomb.len() as u32).to_le_bytes()[..], &bomb, b"."].concat();
    }
    let report = scan_bytes("x.pkl", &bomb);
    assert!(report.findings.iter().any(|finding| finding.kind == FindingKind::Unscanned));
}

#[test]
fn overlapping_pickles_and_members_are_looked_at_within_a_limit() {
    let unscanned = |name: &str, bytes: &[u8], why: &str| {
        let report = scan_bytes(name, bytes);
        report
            .findings
            .iter()
            .any(|finding| finding.kind == FindingKind::Unscanned && finding.what.contains(why))
    };
    // Each of these pickles reads the same line, up to the end of the file.
    let lines = [&b"\xff"[..], &b"\x80\x02S".repeat(60_000), b"\n"].concat();
    assert!(unscanned("x.bin", &lines, "opcodes"));
    // Each of these members claims all that follows it.
    const COUNT: usize = 5_000;
    let mut members = Vec::new();
    for number in 0..COUNT {
        let rest = (30 * (COUNT - number - 1)).saturating_sub(1) as u32;
        members.extend([&b"PK\x03\x04"[..], &[0; 14], &rest.to_le_bytes(), &[0; 8]].concat());
    }
    assert!(unscanned("x.zip", &members, "overlapping"));
}

#[test]
fn keras_configurations_are_looked_through() {
    let lambda = r#"{"class_name": "Functional", "config": {"layers": [{"module": "keras.layers",
        "class_name": "Lambda", "config": {"function": {"class_name": "__lambda__", "config": {"code": "4wEA"}}}}]}}"#;
    let report = scan_bytes("config.json", lambda.as_bytes());
    assert_eq!(report.severity(), Severity::Dangerous);
    assert_eq!(whats(&report, Severity::Dangerous).len(), 2);
    let module =
        r#"{"class_name": "function", "module": "os", "config": "system", "registered_name": "function"}"#;
    assert_eq!(whats(&scan_bytes("config.json", module.as_bytes()), Severity::Dangerous), ["os.system"]);
    let custom = r#"{"class_name": "Mine", "module": "my_package.layers", "config": {}}"#;
    assert_eq!(scan_bytes("config.json", custom.as_bytes()).severity(), Severity::Suspicious);
    let plain = r#"{"class_name": "Dense", "module": "keras.layers", "config": {"units": 3}}"#;
    assert!(scan_bytes("config.json", plain.as_bytes()).findings.is_empty());
    // In an HDF5 file, and broken.
    for text in [lambda, &lambda[..lambda.len() - 3]] {
        let file = [b"\x89HDF\r\n\x1a\n\0\0\0\0", text.as_bytes(), b"\0\0\xff\xff"].concat();
        assert_eq!(scan_bytes("model.h5", &file).severity(), Severity::Dangerous);
        assert_eq!(scan_bytes("config.json", text.as_bytes()).severity(), Severity::Dangerous);
    }
}

#[test]
fn onnx_models_are_looked_through() {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() < 128);
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }
    let model = |domain: &str, location: &str| {
        let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
        let tensor = [field(8, b"w"), field(13, &entry)].concat();
        let node = [field(4, b"Op"), field(7, domain.as_bytes())].concat();
        let graph = [field(1, &node), field(5, &tensor)].concat();
        [vec![0x08, 0x09], field(7, &graph)].concat()
    };
    for name in ["model.onnx", "model"] {
        assert_eq!(scan_bytes(name, &model("", "weights.data")).severity(), Severity::Innocuous);
        for outside in ["../x", "/etc/passwd", "C:\\x", "a/../../x", "http://x/y"] {
            let report = scan_bytes(name, &model("", outside));
            assert_eq!(report.severity(), Severity::Dangerous, "{outside}");
        }
        assert_eq!(scan_bytes(name, &model("com.example", "w")).severity(), Severity::Suspicious);
    }
    let broken = &model("com.example", "../x")[..20];
    assert_eq!(scan_bytes("model.onnx", broken).severity(), Severity::Suspicious);
}
