//! scratch
use sha2::Digest;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let reader = ztensor::Reader::open(&path).unwrap();
    for (name, object) in reader.objects() {
        for (role, c) in &object.components {
            let sum = match reader.read_component(name, role) {
                Ok(b) => sha2::Sha256::digest(&b).iter().map(|b| format!("{b:02x}")).collect::<String>(),
                Err(e) => format!("ERR {e}"),
            };
            println!(
                "{}",
                serde_json::json!([
                    name,
                    role,
                    object.layout.name(),
                    c.dtype.name(),
                    &object.shape[..],
                    c.encoding(),
                    sum
                ])
            );
        }
    }
}
