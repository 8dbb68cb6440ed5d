//! `report`. What the page does in a browser is tested in Python.

use serde_json::Value;

use crate::support::{FORMATS, Place, fixture};
use ztensor::{Compression, Writer};

/// The data inside a page.
fn data(place: &Place, name: &str) -> Value {
    let page = std::fs::read_to_string(place.path(name)).unwrap();
    let start = page.split_once(r#"<script type="application/json" id="data">"#).unwrap().1;
    serde_json::from_str(start.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn every_format_has_a_report() {
    for path in FORMATS {
        let place = Place::new();
        let file = fixture(path);
        let reader = ztensor::open(&file).unwrap();
        let run = place.run(&["report", file.to_str().unwrap(), "-o", "r.html"]).ends(0);
        assert_eq!(run.out, "");
        assert!(run.err.starts_with(&format!("r.html: {} tensor", reader.len())), "{}", run.err);
        let data = data(&place, "r.html");
        assert_eq!(data["format"], reader.format().name(), "{path}");
        let tensors = data["tensors"].as_array().unwrap();
        assert_eq!(tensors.len(), reader.len(), "{path}");
        for (tensor, (name, object)) in tensors.iter().zip(reader.objects()) {
            assert_eq!(tensor["name"], name, "{path}");
            assert_eq!(tensor["bytes"], object.byte_len(), "{path} {name}");
            assert!(tensor["values"].is_object() != tensor["note"].is_string(), "{path} {name}");
            let sample = &tensor["sample"];
            assert_eq!(sample["bytes"], object.byte_len(), "small tensors are tried whole: {path} {name}");
            assert!(sample["compressed"].as_u64() <= sample["bytes"].as_u64(), "{path} {name}");
        }
    }
}

#[test]
fn values_are_counted() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("m.zt")).unwrap();
    let mut numbers: Vec<f32> = (0..1_000_000).map(|n| (n % 1000) as f32 / 1000.0).collect();
    numbers[5] = f32::NAN;
    numbers[6] = f32::NEG_INFINITY;
    numbers[7] = -1000.0;
    let large = writer.add_with("layers.0.weight", &[1000, 1000], &numbers);
    large.compress(Compression::Zstd(1)).write().unwrap();
    writer.add("layers.0.bias", &[0], &[0f32; 0]).unwrap();
    writer.add_csr("sparse", [4, 4], &[1f32, 0.0], &[0u32, 1], &[0u32, 1, 2, 2, 2]).unwrap();
    writer.set_attribute("license", "mit");
    writer.finish().unwrap();
    place.run(&["report", "m.zt", "-o", "r.html"]).ends(0);
    let data = data(&place, "r.html");
    assert_eq!(data["metadata"], serde_json::json!([["license", "mit"]]));
    let [large, empty, sparse] = &data["tensors"].as_array().unwrap()[..] else { panic!("{data}") };
    assert_eq!((&large["layer"], &large["dtype"]), (&"layers.0".into(), &"f32".into()));
    assert_eq!((&large["encoding"], &sparse["layer"]), (&"zstd".into(), &"sparse".into()));
    let values = &large["values"];
    assert_eq!((&values["count"], &values["zeros"]), (&1_000_000.into(), &1000.into()));
    assert_eq!((&values["nan"], &values["infinite"]), (&1.into(), &1.into()));
    assert_eq!(values["min"], -1000.0);
    assert!((values["max"].as_f64().unwrap() - f64::from(0.999f32)).abs() < 1e-12);
    let histogram = &values["histogram"];
    let counts: u64 = histogram["counts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!((counts, &histogram["below"], &histogram["above"]), (999_997, &1.into(), &0.into()));
    assert!(large["sample"]["bytes"].as_u64().unwrap() <= 1 << 20);
    assert!(large["sample"]["compressed"].as_u64() < large["sample"]["bytes"].as_u64());
    assert_eq!((&empty["values"]["count"], &empty["values"]["min"]), (&0.into(), &Value::Null));
    assert_eq!((&sparse["values"]["count"], &sparse["values"]["zeros"]), (&16.into(), &15.into()));
    // The page is the same whatever the number of threads.
    place.run(&["report", "m.zt", "-o", "s.html", "--threads", "1"]).ends(0);
    assert_eq!(std::fs::read(place.path("r.html")).unwrap(), std::fs::read(place.path("s.html")).unwrap());
    place.run(&["report", "m.zt", "-o", "only.html", "--only", "*.bias"]).ends(0);
    assert_eq!(self::data(&place, "only.html")["tensors"].as_array().unwrap().len(), 1);
}

/// Windows has no files of such names.
#[cfg(not(windows))]
#[test]
fn text_of_strangers_stays_text() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("<img src=x onerror=alert(1)>.zt")).unwrap();
    writer.add("</script><script>alert(1)</script>", &[1], &[1f32]).unwrap();
    writer.add("<!--<script>", &[1], &[1f32]).unwrap();
    writer.add("right\u{202e}to\u{0}left", &[1], &[1f32]).unwrap();
    writer.set_attribute("<b>", "<i>");
    writer.finish().unwrap();
    place.run(&["report", "<img src=x onerror=alert(1)>.zt", "-o", "r.html"]).ends(0);
    let page = std::fs::read_to_string(place.path("r.html")).unwrap();
    let own = |tag: &str| page.matches(tag).count();
    assert_eq!((own("<script"), own("</script"), own("<img"), own("<!--"), own("<b>")), (2, 2, 0, 0, 0));
    assert!(page.contains("<title>&lt;img src=x onerror=alert(1)&gt;.zt</title>"));
    let data = data(&place, "r.html");
    assert_eq!(data["file"], "<img src=x onerror=alert(1)>.zt");
    assert_eq!(data["tensors"][0]["name"], "</script><script>alert(1)</script>");
    assert_eq!(data["tensors"][2]["name"], "right\\u{202e}to\\u{0}left");
    // Nothing is loaded from anywhere.
    assert!(page.contains("content=\"default-src 'none'; style-src 'sha256-"));
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!page.replace("img src=x", "").contains(outside), "{outside}");
    }
    assert_eq!(page.matches("http").count(), 2, "the policy and the name of the drawings' language");
}

#[test]
fn nothing_is_left_of_a_failed_report() {
    let place = Place::new();
    place.model("m.zt");
    std::fs::write(place.path("bad.zt"), [0; 100]).unwrap();
    let mut damaged = std::fs::read(fixture("zt/zstd_crc32c.zt")).unwrap();
    damaged[70] ^= 1;
    std::fs::write(place.path("damaged.zt"), damaged).unwrap();
    std::fs::write(place.path("taken.html"), "mine").unwrap();
    let before = place.list();
    place.run(&["report", "bad.zt", "-o", "r.html"]).fails(3, &["bad.zt"]);
    place.run(&["report", "damaged.zt", "-o", "r.html"]).fails(3, &["damaged.zt"]);
    place.run(&["report", "absent.zt", "-o", "r.html"]).fails(4, &["absent.zt"]);
    place.run(&["report", "m.zt", "-o", "absent/r.html"]).fails(4, &["absent"]);
    place.run(&["report", "m.zt", "-o", "taken.html"]).fails(2, &["taken.html", "--force"]);
    place.run(&["report", "m.zt", "-o", "m.zt", "--force"]).fails(2, &["input"]);
    place.run(&["report", "m.zt", "-o", "r.html", "--only", "x*"]).fails(2, &["x*"]);
    assert_eq!(place.list(), before);
    place.run(&["report", "m.zt"]).ends(0);
    assert_eq!(data(&place, "m.zt.html")["tensors"].as_array().unwrap().len(), 4);
    place.run(&["report", "m.zt"]).fails(2, &["m.zt.html", "--force"]);
    place.run(&["report", "m.zt", "-o", "taken.html", "--force", "-q"]).ends(0);
    assert_eq!(data(&place, "taken.html")["tensors"].as_array().unwrap().len(), 4);
}
