//! The in-toto statement that a model signature is made over.

use std::collections::HashSet;

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use ztensor::ContentId;

use super::keys::{hex, unhex};
use super::manifest::Algorithm;

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PREDICATE: &str = "https://model_signing/signature/v1.0";

/// Which files a model has, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The name of the file or folder when it was signed.
    pub name: String,
    /// Paths in the folder, `.` for a model of one file, and digests; ascending.
    pub files: Vec<(String, Vec<u8>)>,
    /// How files are hashed.
    pub algorithm: Algorithm,
    /// Paths in the folder that were left out.
    pub ignored: Vec<String>,
    /// Whether links to files count as files.
    pub follow_links: bool,
    /// The content id, if the files are a model that has one.
    pub content_id: Option<ContentId>,
}

impl Statement {
    /// A digest of all digests.
    fn root(&self) -> String {
        let mut hasher = Sha256::new();
        self.files.iter().for_each(|(_, digest)| hasher.update(digest));
        hex(&hasher.finalize())
    }

    /// The statement as it is signed.
    pub fn to_json(&self) -> Json {
        let algorithm = self.algorithm.name();
        let resources: Vec<Json> = self
            .files
            .iter()
            .map(|(name, digest)| json!({"name": name, "algorithm": algorithm, "digest": hex(digest)}))
            .collect();
        let mut predicate = json!({
            "serialization": {
                "method": "files",
                "hash_type": algorithm,
                "allow_symlinks": self.follow_links,
                "ignore_paths": self.ignored,
            },
            "resources": resources,
        });
        if let Some(id) = self.content_id {
            predicate["ztensor"] = json!({"content_id": id.to_string()});
        }
        json!({
            "_type": STATEMENT,
            "subject": [{"name": self.name, "digest": {"sha256": self.root()}}],
            "predicateType": PREDICATE,
            "predicate": predicate,
        })
    }

    /// Reads a statement, or says what is wrong with it.
    pub fn parse(payload: &[u8]) -> Result<Statement, String> {
        let json: Json = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        if json["_type"].as_str() != Some(STATEMENT) {
            return Err("its payload is not an in-toto statement of version 1".to_owned());
        }
        if json["predicateType"].as_str() != Some(PREDICATE) {
            return Err(format!("the statement is not about a model signature of version 1.0 ({PREDICATE})"));
        }
        let Some([subject]) = json["subject"].as_array().map(Vec::as_slice) else {
            return Err("the statement does not have one subject".to_owned());
        };
        let predicate = &json["predicate"];
        let serialization = &predicate["serialization"];
        let method = serialization["method"].as_str().unwrap_or_default();
        if method != "files" {
            return Err(format!(
                "files are hashed by the method {method:?}, and only \"files\" is supported"
            ));
        }
        let algorithm = serialization["hash_type"].as_str().unwrap_or_default();
        let algorithm = Algorithm::from_name(algorithm)
            .ok_or_else(|| format!("files are hashed with {algorithm:?}, which is not supported"))?;
        let resources = predicate["resources"].as_array().ok_or("the statement lists no files")?;
        let mut files = Vec::with_capacity(resources.len());
        for resource in resources {
            if resource["algorithm"].as_str() != Some(algorithm.name()) {
                return Err("a file is hashed with another algorithm than the statement says".to_owned());
            }
            let digest = resource["digest"].as_str().and_then(unhex).filter(|digest| !digest.is_empty());
            let name = resource["name"].as_str().ok_or("a file has no name")?;
            files.push((name.to_owned(), digest.ok_or("a file has no digest")?));
        }
        let names: HashSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() != files.len() {
            return Err("a file is listed twice".to_owned());
        }
        let ignored = serialization["ignore_paths"].as_array().map_or(&[][..], Vec::as_slice);
        let content_id = match &predicate["ztensor"]["content_id"] {
            Json::Null => None,
            id => Some(id.as_str().and_then(|id| id.parse().ok()).ok_or("its content id is not one")?),
        };
        let statement = Statement {
            name: subject["name"].as_str().unwrap_or_default().to_owned(),
            files,
            algorithm,
            ignored: ignored.iter().filter_map(|path| path.as_str().map(str::to_owned)).collect(),
            follow_links: serialization["allow_symlinks"].as_bool().unwrap_or(false),
            content_id,
        };
        if subject["digest"]["sha256"].as_str() != Some(&statement.root()) {
            return Err("the digest of the subject is not that of the files".to_owned());
        }
        Ok(statement)
    }
}
