//! A level that the machine lacks is an error of every call, not a silent choice of another.

use z4ai::{DecodeOptions, ErrorKind, Kind, Options, SimdLevel, delta};

/// Runs this test binary again with `Z4AI_CPU`, which is read once per process.
fn run(test: &str, level: &str) -> std::process::Output {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("Z4AI_CPU", level)
        .output()
        .unwrap()
}

#[test]
fn the_environment_forces_the_level() {
    for level in SimdLevel::available() {
        let output = run("prints_the_level", level.name());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(&format!("level {level}\n")), "{text}");
    }
}

#[test]
fn levels_that_the_machine_lacks_are_errors() {
    let lacking = SimdLevel::all().filter(|level| !SimdLevel::available().any(|had| had == *level));
    for name in lacking.map(SimdLevel::name).chain(["sse9", "AVX2", ""]) {
        let output = run("fails_by_name", name);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name}: {text}");
        assert!(text.contains("1 passed"), "{name}: {text}");
    }
}

#[test]
#[ignore = "run by another test, with Z4AI_CPU set"]
fn prints_the_level() {
    println!("level {}", SimdLevel::current().unwrap());
}

#[test]
#[ignore = "run by another test, with Z4AI_CPU set"]
fn fails_by_name() {
    let name = std::env::var("Z4AI_CPU").unwrap();
    let check = |error: z4ai::Error| {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let start = format!("Z4AI_CPU={name}: this machine has the levels portable");
        assert!(error.message().starts_with(&start), "{error}");
    };
    let golden =
        |file: &str| std::fs::read(format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (options, decoding) = (Options { kind: Kind::Bf16, ..Options::default() }, DecodeOptions::default());
    check(SimdLevel::current().unwrap_err());
    check(z4ai::compress(&[0; 1000], &options).unwrap_err());
    check(z4ai::decompress(&golden("bf16.z4ai"), &decoding).unwrap_err());
    check(delta::compress(&[0; 1000], &[1; 1000], &options).unwrap_err());
    let reference = golden("delta_bits.ref");
    check(delta::decompress(&golden("delta_bits.z4dl"), &reference, &decoding).unwrap_err());
    check(delta::apply(&golden("delta_bits.z4dl"), &mut reference.clone(), &decoding).unwrap_err());
}
