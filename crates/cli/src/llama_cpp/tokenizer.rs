//! The vocabulary of a model as llama.cpp has it: byte-level BPE from `tokenizer.json`, or SentencePiece
//! from `tokenizer.model`.

use std::path::Path;

use serde_json::Value as Json;
use ztensor::{Attributes, Value};

use super::config::Config;
use super::{file, json};
use crate::failure::Failure;

/// Kinds of tokens, with the numbers that SentencePiece and llama.cpp share.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
/// What SentencePiece puts in the place of spaces.
const SPACE: char = '\u{2581}';
/// The score of tokens that SentencePiece does not have.
const ADDED_SCORE: f64 = -1000.0;

/// Splits of text before BPE that llama.cpp has a name for.
const SPLITS: [(&str, &str); 2] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
];

/// A vocabulary by id.
struct Vocabulary {
    model: &'static str,
    pre: &'static str,
    tokens: Vec<Option<Token>>,
    merges: Option<Vec<Value>>,
}

#[derive(Clone)]
struct Token {
    text: String,
    score: f64,
    kind: i32,
}

/// The metadata of a model's vocabulary.
pub fn attributes(folder: &Path, config: &Config) -> Result<Attributes, Failure> {
    let parsed = json(folder, "tokenizer.json")?;
    let settings = json(folder, "tokenizer_config.json")?.unwrap_or(Json::Null);
    let mut vocabulary = match (file(folder, "tokenizer.model")?, &parsed) {
        (Some(bytes), _) => sentence_piece(&bytes)?,
        (None, Some(parsed)) => byte_level(parsed)?,
        (None, None) => {
            return Err(Failure::usage(
                "the folder has neither tokenizer.json nor tokenizer.model: --no-tokenizer writes the model \
                 without a vocabulary",
            ));
        }
    };
    add(&mut vocabulary, parsed.as_ref().unwrap_or(&Json::Null), &settings)?;
    // As many as the embedding has rows.
    let wanted = config.vocabulary as usize;
    let found = vocabulary.tokens.len();
    if found > wanted {
        let message = format!("the tokenizer has {found} tokens, the model has embeddings of {wanted}");
        return Err(Failure::bad_file(message));
    }
    vocabulary.tokens.resize(wanted, None);
    let mut attributes = vocabulary.attributes();
    let mut put = |key: &str, value: Value| attributes.insert(format!("tokenizer.{key}"), value);
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        if let Some(id) = vocabulary.special(name, &settings, config) {
            put(&format!("ggml.{key}_token_id"), id.into());
        }
    }
    for key in ["add_bos_token", "add_eos_token"] {
        let said = settings[key].as_bool();
        let template = || parsed.as_ref().and_then(|parsed| template_adds(&parsed["post_processor"], key));
        if let Some(add) = said.or_else(template) {
            put(&format!("ggml.{key}"), add.into());
        }
    }
    let template = match settings["chat_template"].as_str() {
        Some(template) => Some(template.to_owned()),
        None => match file(folder, "chat_template.jinja")? {
            Some(bytes) => Some(
                String::from_utf8(bytes)
                    .map_err(|_| Failure::bad_file("chat_template.jinja is not UTF-8"))?,
            ),
            None => None,
        },
    };
    if let Some(template) = template {
        put("chat_template", template.into());
    }
    Ok(attributes)
}

impl Vocabulary {
    fn attributes(&self) -> Attributes {
        let token = |(id, token): (usize, &Option<Token>)| match token {
            Some(token) => token.clone(),
            None => Token { text: format!("[PAD{id}]"), score: ADDED_SCORE, kind: UNUSED },
        };
        let tokens: Vec<Token> = self.tokens.iter().enumerate().map(token).collect();
        let mut attributes = Attributes::new();
        let mut put = |key: &str, value: Value| attributes.insert(format!("tokenizer.ggml.{key}"), value);
        put("model", self.model.into());
        put("pre", self.pre.into());
        put("tokens", Value::Array(tokens.iter().map(|token| token.text.as_str().into()).collect()));
        if self.merges.is_none() {
            put("scores", Value::Array(tokens.iter().map(|token| token.score.into()).collect()));
        }
        put("token_type", Value::Array(tokens.iter().map(|token| token.kind.into()).collect()));
        if let Some(merges) = &self.merges {
            put("merges", Value::Array(merges.clone()));
        }
        attributes
    }

    /// The id of a special token: by its text in `tokenizer_config.json`, or as `config.json` says.
    fn special(&self, name: &str, settings: &Json, config: &Config) -> Option<u64> {
        let named = &settings[format!("{name}_token")];
        let text = named.as_str().or(named["content"].as_str());
        let is = |token: &Option<Token>| token.as_ref().is_some_and(|token| Some(&*token.text) == text);
        let by_text = text.and_then(|_| self.tokens.iter().position(is)).map(|id| id as u64);
        let stated = config.special.iter().find(|(special, _)| *special == name).map(|(_, id)| *id);
        by_text.or(stated.filter(|id| *id < self.tokens.len() as u64))
    }

    fn put(&mut self, id: u64, token: Token) -> Result<(), Failure> {
        // More than any vocabulary has; ids are claims of a file.
        const MOST: u64 = 16 << 20;
        if id >= MOST {
            return Err(Failure::bad_file(format!("the tokenizer has a token with the id {id}")));
        }
        let id = id as usize;
        if self.tokens.len() <= id {
            self.tokens.resize(id + 1, None);
        }
        self.tokens[id] = Some(token);
        Ok(())
    }
}

/// Byte-level BPE.
fn byte_level(parsed: &Json) -> Result<Vocabulary, Failure> {
    let model = &parsed["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    let byte_level = is_byte_level(&parsed["pre_tokenizer"]);
    if kind != "BPE" || model["byte_fallback"].as_bool() == Some(true) || !byte_level {
        return Err(Failure::usage(format!(
            "tokenizer.json: {kind} that is not byte-level cannot be written for llama.cpp without tokenizer.model"
        )));
    }
    let pre = split(&parsed["pre_tokenizer"])?;
    let malformed = || Failure::bad_file("tokenizer.json: the vocabulary is not a map from tokens to ids");
    let mut vocabulary = Vocabulary { model: "gpt2", pre, tokens: Vec::new(), merges: None };
    for (text, id) in model["vocab"].as_object().ok_or_else(malformed)? {
        let token = Token { text: text.clone(), score: 0.0, kind: NORMAL };
        vocabulary.put(id.as_u64().ok_or_else(malformed)?, token)?;
    }
    let merge = |merge: &Json| match (merge.as_str(), merge[0].as_str(), merge[1].as_str()) {
        (Some(both), ..) => Some(both.to_owned()),
        // A space within a part is written as the character that stands for it in byte-level BPE.
        (_, Some(left), Some(right)) => {
            Some(format!("{} {}", left.replace(' ', "\u{120}"), right.replace(' ', "\u{120}")))
        }
        _ => None,
    };
    let merges = model["merges"].as_array().map(Vec::as_slice).unwrap_or_default();
    let merges: Option<Vec<Value>> = merges.iter().map(|pair| merge(pair).map(Value::from)).collect();
    let malformed = || Failure::bad_file("tokenizer.json: a merge is not a pair of tokens");
    vocabulary.merges = Some(merges.ok_or_else(malformed)?);
    if vocabulary.merges.as_ref().is_some_and(Vec::is_empty) {
        return Err(Failure::bad_file("tokenizer.json: byte-level BPE without merges"));
    }
    Ok(vocabulary)
}

/// A pre-tokenizer, and those of a sequence.
fn parts(pre_tokenizer: &Json) -> Vec<&Json> {
    match pre_tokenizer["pretokenizers"].as_array() {
        Some(parts) => parts.iter().collect(),
        None => vec![pre_tokenizer],
    }
}

fn is_byte_level(pre_tokenizer: &Json) -> bool {
    parts(pre_tokenizer).iter().any(|part| part["type"] == "ByteLevel")
}

/// The name that llama.cpp has for a split of text.
fn split(pre_tokenizer: &Json) -> Result<&'static str, Failure> {
    let parts = parts(pre_tokenizer);
    let splits: Vec<&Json> = parts.iter().copied().filter(|part| part["type"] == "Split").collect();
    let others = parts.iter().any(|part| part["type"] != "Split" && part["type"] != "ByteLevel");
    if let ([], false) = (&splits[..], others) {
        // The pattern of GPT-2 is part of the byte level.
        return Ok("gpt-2");
    }
    let pattern = match (&splits[..], others) {
        ([split], false) => split["pattern"]["Regex"].as_str(),
        _ => None,
    };
    let known = SPLITS.iter().find(|(known, _)| Some(*known) == pattern).map(|(_, name)| *name);
    known.ok_or_else(|| {
        Failure::usage(
            "tokenizer.json: llama.cpp has to know how text is split before BPE, and this pattern is not that \
             of GPT-2, Llama 3 or Qwen2",
        )
    })
}

/// Whether the template of a post-processor adds the token.
fn template_adds(processor: &Json, key: &str) -> Option<bool> {
    if let Some(processors) = processor["processors"].as_array() {
        return processors.iter().find_map(|processor| template_adds(processor, key));
    }
    let single = processor["single"].as_array()?;
    let end = if key == "add_bos_token" { single.first() } else { single.last() };
    end.map(|end| !end["SpecialToken"].is_null())
}

/// Tokens that were added to a vocabulary.
fn add(vocabulary: &mut Vocabulary, parsed: &Json, settings: &Json) -> Result<(), Failure> {
    let listed = parsed["added_tokens"].as_array().into_iter().flatten();
    let mut added: Vec<(u64, &Json)> =
        listed.filter_map(|token| Some((token["id"].as_u64()?, token))).collect();
    let decoder = settings["added_tokens_decoder"].as_object().into_iter().flatten();
    added.extend(decoder.filter_map(|(id, token)| Some((id.parse().ok()?, token))));
    for (id, token) in added {
        let Some(text) = token["content"].as_str() else { continue };
        let known = vocabulary.tokens.get(id as usize).and_then(Option::as_ref);
        // SentencePiece knows its own control tokens.
        if vocabulary.merges.is_none()
            && known.is_some_and(|known| known.text == text && known.kind != UNUSED)
        {
            continue;
        }
        let special = token["special"].as_bool() == Some(true);
        let (kind, text) = match special {
            true => (CONTROL, text.to_owned()),
            false => (USER_DEFINED, text.replace(SPACE, " ")),
        };
        vocabulary.put(id, Token { text, score: ADDED_SCORE, kind })?;
    }
    Ok(())
}

/// The pieces of a SentencePiece model, a protobuf: field 1 is repeated, with 1 the text, 2 the score
/// and 3 the kind.
fn sentence_piece(bytes: &[u8]) -> Result<Vocabulary, Failure> {
    let malformed = || Failure::bad_file("tokenizer.model is not a SentencePiece model");
    let mut vocabulary = Vocabulary { model: "llama", pre: "default", tokens: Vec::new(), merges: None };
    let mut rest = bytes;
    while !rest.is_empty() {
        let (field, value) = field(&mut rest).ok_or_else(malformed)?;
        let (1, Wire::Bytes(mut piece)) = (field, value) else { continue };
        let mut token = Token { text: String::new(), score: 0.0, kind: NORMAL };
        while !piece.is_empty() {
            match self::field(&mut piece).ok_or_else(malformed)? {
                (1, Wire::Bytes(text)) => {
                    token.text = String::from_utf8(text.to_vec()).map_err(|_| malformed())?;
                }
                (2, Wire::Fixed32(score)) => token.score = f64::from(f32::from_bits(score)),
                (3, Wire::Number(kind)) => token.kind = i32::try_from(kind).map_err(|_| malformed())?,
                _ => {}
            }
        }
        vocabulary.tokens.push(Some(token));
    }
    match vocabulary.tokens.is_empty() {
        true => Err(malformed()),
        false => Ok(vocabulary),
    }
}

enum Wire<'a> {
    Number(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    Fixed64,
}

/// The next field of a protobuf.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let tag = number(bytes)?;
    let value = match tag & 7 {
        0 => Wire::Number(number(bytes)?),
        1 => {
            *bytes = bytes.get(8..)?;
            Wire::Fixed64
        }
        2 => {
            let len = usize::try_from(number(bytes)?).ok()?;
            let (taken, rest) = bytes.split_at_checked(len)?;
            *bytes = rest;
            Wire::Bytes(taken)
        }
        5 => {
            let (taken, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Wire::Fixed32(u32::from_le_bytes(*taken))
        }
        _ => return None,
    };
    Some((tag >> 3, value))
}

/// The next variable-length number.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_sentence_piece_model() {
        let piece = |text: &str, score: f32, kind: u8| {
            let mut piece = vec![0x0a, text.len() as u8];
            piece.extend(text.bytes());
            piece.push(0x15);
            piece.extend(score.to_le_bytes());
            piece.extend([0x18, kind]);
            let mut field = vec![0x0a, piece.len() as u8];
            field.extend(piece);
            field
        };
        let mut model = piece("<unk>", 0.0, 2);
        model.extend(piece("\u{2581}the", -1.5, 1));
        model.extend([0x12, 2, 1, 1]); // trainer_spec
        let vocabulary = sentence_piece(&model).unwrap_or_else(|failure| panic!("{}", failure.into_error()));
        let tokens: Vec<_> = vocabulary.tokens.iter().flatten().collect();
        assert_eq!((tokens[0].kind, tokens[1].kind, tokens[1].score), (2, NORMAL, -1.5));
        assert_eq!(tokens[1].text, "\u{2581}the");
        for len in 1..model.len() {
            let _ = sentence_piece(&model[..len]); // an error or fewer pieces, no panic
        }
        assert!(sentence_piece(b"").is_err());
        assert!(sentence_piece(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).is_err());
    }

    #[test]
    fn unknown_splits_are_refused() {
        let with = |pattern: &str| {
            serde_json::json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}}, {"type": "ByteLevel"}]})
        };
        assert_eq!(split(&with(SPLITS[0].0)).ok(), Some("llama-bpe"));
        assert_eq!(split(&with(SPLITS[1].0)).ok(), Some("qwen2"));
        assert_eq!(split(&serde_json::json!({"type": "ByteLevel"})).ok(), Some("gpt-2"));
        assert!(split(&with(r"\s+")).is_err());
        assert!(split(&serde_json::json!({"type": "Metaspace"})).is_err());
    }
}
