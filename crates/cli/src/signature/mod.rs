//! Signatures of models in the format of OpenSSF Model Signing 1.0, with plain ECDSA P-256 keys.
//!
//! A signature is a Sigstore bundle (JSON) around a DSSE envelope, whose payload is an in-toto
//! statement: the files of the model and their digests. Here the statement has one more field, the
//! content id of the model, which verifiers of the format ignore: with it a model that was converted
//! to another format still verifies.

pub mod keys;
pub mod manifest;
mod statement;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde_json::{Value as Json, json};

use crate::failure::Failure;
use keys::{PrivateKey, PublicKey};
pub use statement::Statement;

/// What the payload is, in the envelope.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// The bundle that is written; earlier versions of it are read.
const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const MEDIA_TYPE_PREFIX: &str = "application/vnd.dev.sigstore.bundle";
/// Longer files are no signatures: a statement has about 150 bytes for each file of a model.
pub const MAX_LEN: u64 = 64 << 20;

/// What DSSE signs: type and payload, with their lengths.
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// A signature file over a statement.
pub fn sign(statement: &Statement, key: &PrivateKey) -> Result<String, Failure> {
    let payload = serde_json::to_vec(&statement.to_json()).map_err(std::io::Error::from)?;
    let signature = key.sign(&pre_authentication(PAYLOAD_TYPE, &payload));
    let bundle = json!({
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key.public().hint()?}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": STANDARD.encode(&payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": STANDARD.encode(signature), "keyid": ""}],
        },
    });
    serde_json::to_string(&bundle).map_err(|error| std::io::Error::from(error).into())
}

/// The statement of a signature file, if the key signed it.
pub fn verify(bundle: &[u8], key: &PublicKey) -> Result<Statement, Failure> {
    let malformed = |what: &str| Failure::bad_file(format!("not a model signature: {what}"));
    let bundle: Json = serde_json::from_slice(bundle).map_err(|error| malformed(&error.to_string()))?;
    let media_type = bundle["mediaType"].as_str().unwrap_or_default();
    if !media_type.starts_with(MEDIA_TYPE_PREFIX) {
        return Err(malformed("it is not a Sigstore bundle"));
    }
    let material = &bundle["verificationMaterial"];
    if !material["certificate"].is_null() || !material["x509CertificateChain"].is_null() {
        let message = "it was made with a certificate (Sigstore or PKI); only plain keys are supported here";
        return Err(Failure::bad_file(message));
    }
    if let Some(hint) = material["publicKey"]["hint"].as_str().filter(|hint| !hint.is_empty())
        && hint != key.hint()?
    {
        return Err(Failure::differs("the signature was made with another key"));
    }
    let envelope = &bundle["dsseEnvelope"];
    if envelope["payloadType"].as_str() != Some(PAYLOAD_TYPE) {
        return Err(malformed("its payload is not an in-toto statement"));
    }
    let decoded = |value: &Json| {
        let text = value.as_str()?;
        STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text)).ok()
    };
    let payload = decoded(&envelope["payload"]).ok_or_else(|| malformed("it has no payload"))?;
    // Exactly one, so that what is verified is all that was claimed.
    let Some([signature]) = envelope["signatures"].as_array().map(Vec::as_slice) else {
        return Err(malformed("it does not have one signature"));
    };
    let signature = decoded(&signature["sig"]).ok_or_else(|| malformed("its signature is not base64"))?;
    if !key.verifies(&pre_authentication(PAYLOAD_TYPE, &payload), &signature) {
        return Err(Failure::differs("the signature does not verify with this key"));
    }
    Statement::parse(&payload).map_err(|what| malformed(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = include_str!("../../tests/data/p256.pem");

    fn statement() -> Statement {
        Statement {
            name: "model".to_owned(),
            files: vec![("a.bin".to_owned(), [1; 32].to_vec()), ("b/c".to_owned(), [2; 32].to_vec())],
            algorithm: manifest::Algorithm::Sha256,
            ignored: vec![".git".to_owned()],
            follow_links: false,
            content_id: Some(ztensor::id::model_id::<&str>([])),
        }
    }

    #[test]
    fn what_was_signed_verifies_and_nothing_else_does() {
        let key = PrivateKey::parse(KEY).unwrap();
        let text = sign(&statement(), &key).unwrap();
        assert_eq!(verify(text.as_bytes(), &key.public()).unwrap(), statement());
        assert_eq!(sign(&statement(), &key).unwrap(), text, "signatures are deterministic (RFC 6979)");

        let bundle: Json = serde_json::from_str(&text).unwrap();
        let changed = |pointer: &str, value: Json| {
            let mut changed = bundle.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            verify(changed.to_string().as_bytes(), &key.public())
        };
        let payload = bundle.pointer("/dsseEnvelope/payload").unwrap().as_str().unwrap();
        let payload = String::from_utf8(STANDARD.decode(payload).unwrap()).unwrap();
        let other = STANDARD.encode(payload.replace("a.bin", "z.bin"));
        assert!(changed("/dsseEnvelope/payload", other.into()).is_err());
        assert!(changed("/dsseEnvelope/payloadType", "text/plain".into()).is_err());
        assert!(changed("/dsseEnvelope/signatures", json!([])).is_err());
        assert!(changed("/dsseEnvelope/signatures/0/sig", "AAAA".into()).is_err());
        assert!(changed("/mediaType", "application/json".into()).is_err());
        assert!(changed("/verificationMaterial/publicKey/hint", "00".into()).is_err());
        // A bundle without the hint, as early versions wrote it.
        changed("/verificationMaterial/publicKey/hint", "".into()).unwrap();
        for text in ["", "{}", "[]", "null", "{\"mediaType\":3}", &"[".repeat(100_000)] {
            assert!(verify(text.as_bytes(), &key.public()).is_err());
        }
    }

    #[test]
    fn statements_that_contradict_themselves_are_refused() {
        let good = statement().to_json();
        assert_eq!(Statement::parse(good.to_string().as_bytes()).unwrap(), statement());
        let changes = [
            ("/_type", json!("https://in-toto.io/Statement/v0.1")),
            ("/predicateType", json!("https://slsa.dev/provenance/v1")),
            ("/subject", json!([])),
            ("/subject/0/digest/sha256", json!("00")),
            ("/predicate/resources/0/digest", json!("zz")),
            ("/predicate/resources/0/algorithm", json!("md5")),
            ("/predicate/resources/1/name", json!("a.bin")),
            ("/predicate/serialization/method", json!("shards")),
            ("/predicate/ztensor/content_id", json!("b3:00")),
        ];
        for (pointer, value) in changes {
            let mut changed = good.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(Statement::parse(changed.to_string().as_bytes()).is_err(), "{pointer}");
        }
        let mut without = good;
        without["predicate"].as_object_mut().unwrap().remove("ztensor");
        assert_eq!(Statement::parse(without.to_string().as_bytes()).unwrap().content_id, None);
    }
}
