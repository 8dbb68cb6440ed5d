//! ECDSA P-256 keys in PEM files.

use p256::ecdsa::signature::{Signer, Verifier};
use p256::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePublicKey, EncodePublicKey, LineEnding};
use sha2::{Digest, Sha256};

use crate::failure::Failure;

/// A private key: PKCS #8 or SEC 1.
pub struct PrivateKey(SigningKey);

/// A public key.
pub struct PublicKey(VerifyingKey);

impl PrivateKey {
    /// The key in a PEM file, which is not encrypted.
    pub fn parse(pem: &str) -> Result<PrivateKey, Failure> {
        if pem.contains("ENCRYPTED") {
            let message = "the key is encrypted: `openssl pkcs8 -in KEY -out PLAIN` decrypts it";
            return Err(Failure::usage(message));
        }
        // What OpenSSL writes in front of a SEC 1 key.
        let start = pem.find("-----BEGIN PRIVATE KEY").or_else(|| pem.find("-----BEGIN EC PRIVATE KEY"));
        let key = p256::SecretKey::from_pem(&pem[start.unwrap_or(0)..]).map_err(|_| {
            Failure::usage("not a private ECDSA P-256 key in PEM form: `openssl ecparam -name prime256v1 -genkey -noout` makes one")
        })?;
        Ok(PrivateKey(key.into()))
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey(*self.0.verifying_key())
    }

    /// The signature of a message, as ASN.1.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signature: DerSignature = self.0.sign(message);
        signature.as_bytes().to_vec()
    }
}

impl PublicKey {
    /// The key in a PEM file.
    pub fn parse(pem: &str) -> Result<PublicKey, Failure> {
        let key = VerifyingKey::from_public_key_pem(pem)
            .map_err(|_| Failure::usage("not a public ECDSA P-256 key in PEM form"))?;
        Ok(PublicKey(key))
    }

    /// What a bundle names the key by: the SHA-256 of its PEM form.
    pub fn hint(&self) -> Result<String, Failure> {
        let pem = self.0.to_public_key_pem(LineEnding::LF);
        let pem = pem.map_err(|error| Failure::usage(format!("the key has no PEM form: {error}")))?;
        Ok(hex(&Sha256::digest(pem.as_bytes())))
    }

    /// Whether this key's private key signed the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        DerSignature::from_bytes(signature).is_ok_and(|signature| self.0.verify(message, &signature).is_ok())
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    (pairs.remainder().is_empty()).then_some(())?;
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = include_str!("../../tests/data/p256.pem");

    #[test]
    fn a_key_signs_and_verifies() {
        let key = PrivateKey::parse(KEY).unwrap();
        let public = key.public();
        let signature = key.sign(b"abc");
        assert!(public.verifies(b"abc", &signature));
        assert!(!public.verifies(b"abd", &signature));
        assert!(!public.verifies(b"abc", &signature[..10]) && !public.verifies(b"abc", &[]));
        assert_eq!(public.hint().unwrap().len(), 64);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "ENCRYPTED"] {
            assert!(PrivateKey::parse(text).is_err());
            assert!(PublicKey::parse(text).is_err());
        }
        assert!(PublicKey::parse(KEY).is_err());
    }

    #[test]
    fn hexadecimal_leads_back() {
        assert_eq!(unhex(&hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!((unhex("0"), unhex("0g"), unhex("é")), (None, None, None));
    }
}
