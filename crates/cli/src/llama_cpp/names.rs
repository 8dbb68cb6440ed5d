//! Tensors of a model: their names in llama.cpp, their shapes, and the order of their rows.

use std::collections::HashSet;

use super::config::{Architecture, Config};
use crate::failure::Failure;

/// What happens to the rows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    None,
    /// The two halves of each head are interleaved: `transformers` rotates element i with i + n/2,
    /// llama.cpp's Llama rotates neighbours.
    Rotary {
        heads: u64,
    },
}

/// The parts of a layer: in the model, in llama.cpp, and their shape.
const LAYER: [(&str, &str, Dims); 9] = [
    ("input_layernorm", "attn_norm", &[Dim::Hidden]),
    ("self_attn.q_proj", "attn_q", &[Dim::Heads, Dim::Hidden]),
    ("self_attn.k_proj", "attn_k", &[Dim::KvHeads, Dim::Hidden]),
    ("self_attn.v_proj", "attn_v", &[Dim::KvHeads, Dim::Hidden]),
    ("self_attn.o_proj", "attn_output", &[Dim::Hidden, Dim::Heads]),
    ("post_attention_layernorm", "ffn_norm", &[Dim::Hidden]),
    ("mlp.gate_proj", "ffn_gate", &[Dim::FeedForward, Dim::Hidden]),
    ("mlp.up_proj", "ffn_up", &[Dim::FeedForward, Dim::Hidden]),
    ("mlp.down_proj", "ffn_down", &[Dim::Hidden, Dim::FeedForward]),
];

/// Tensors outside of layers.
const OUTSIDE: [(&str, &str, Dims); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight", &[Dim::Vocabulary, Dim::Hidden]),
    ("model.norm.weight", "output_norm.weight", &[Dim::Hidden]),
    ("lm_head.weight", "output.weight", &[Dim::Vocabulary, Dim::Hidden]),
];

type Dims = &'static [Dim];

/// A size that the configuration gives.
#[derive(Debug, Clone, Copy)]
enum Dim {
    Hidden,
    /// All heads of the queries.
    Heads,
    /// All heads of keys, or of values.
    KvHeads,
    FeedForward,
    Vocabulary,
}

impl Dim {
    fn size(self, config: &Config) -> u64 {
        match self {
            Dim::Hidden => config.hidden,
            Dim::Heads => config.heads.saturating_mul(config.head_dim),
            Dim::KvHeads => config.kv_heads.saturating_mul(config.head_dim),
            Dim::FeedForward => config.feed_forward,
            Dim::Vocabulary => config.vocabulary,
        }
    }
}

/// The name of a tensor in llama.cpp, and the order of its rows; `None` for one that is not needed there.
pub fn place(name: &str, config: &Config) -> Result<Option<(String, Transform)>, Failure> {
    if name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight") {
        return Ok(None); // computed from the configuration; the same as the embedding
    }
    if let Some((_, new, _)) = OUTSIDE.iter().find(|(known, ..)| *known == name) {
        return Ok(Some(((*new).to_owned(), Transform::None)));
    }
    let layer = || {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer: u64 = layer.parse().ok().filter(|layer| *layer < config.layers)?;
        let (part, suffix) = rest.rsplit_once('.')?;
        let (_, new, dims) = LAYER.iter().find(|(known, ..)| *known == part)?;
        let known = match suffix {
            "weight" => true,
            "bias" => dims.len() == 2, // norms have none
            _ => false,
        };
        known.then(|| (format!("blk.{layer}.{new}.{suffix}"), transform(part, config)))
    };
    layer().map(Some).ok_or_else(|| {
        Failure::usage(format!(
            "{}: {} of llama.cpp has no tensor for it, so the model would not be the same",
            format_args!("{name:?}"),
            config.architecture.name()
        ))
    })
}

fn transform(part: &str, config: &Config) -> Transform {
    match (config.architecture, part) {
        (Architecture::Llama, "self_attn.q_proj") => Transform::Rotary { heads: config.heads },
        (Architecture::Llama, "self_attn.k_proj") => Transform::Rotary { heads: config.kv_heads },
        _ => Transform::None,
    }
}

/// Refuses a tensor whose shape is not that of the configuration.
pub fn check_shape(name: &str, new: &str, shape: &[u64], config: &Config) -> Result<(), Failure> {
    let within = |known: &str| {
        let part = new.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(_, part)| part);
        part.and_then(|part| part.rsplit_once('.')).is_some_and(|(part, _)| part == known)
    };
    let dims = OUTSIDE.iter().find(|(_, known, _)| *known == new).map(|(.., dims)| *dims);
    let dims = dims.or_else(|| LAYER.iter().find(|(_, known, _)| within(known)).map(|(.., dims)| *dims));
    let mut expected: Vec<u64> = dims.unwrap_or_default().iter().map(|dim| dim.size(config)).collect();
    if new.ends_with(".bias") {
        expected.truncate(1);
    }
    match expected == shape {
        true => Ok(()),
        false => Err(Failure::bad_file(format!(
            "{}: it has the shape {shape:?}, config.json says {expected:?}",
            format_args!("{name:?}")
        ))),
    }
}

/// Refuses a model that lacks a tensor.
pub fn check_complete<'a>(names: impl Iterator<Item = &'a str>, config: &Config) -> Result<(), Failure> {
    let names: HashSet<&str> = names.collect();
    let mut needed = vec!["token_embd.weight".to_owned(), "output_norm.weight".to_owned()];
    if !config.tied {
        needed.push("output.weight".to_owned());
    }
    for layer in 0..config.layers {
        needed.extend(LAYER.iter().map(|(_, part, _)| format!("blk.{layer}.{part}.weight")));
        let biases = if config.attention_bias { &["attn_q", "attn_k", "attn_v"][..] } else { &[] };
        needed.extend(biases.iter().map(|part| format!("blk.{layer}.{part}.bias")));
    }
    match needed.iter().find(|name| !names.contains(name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Failure::bad_file(format!("the model has no tensor for {name} of llama.cpp"))),
    }
}

/// Rows of `heads` heads, with the two halves of each interleaved.
pub fn interleave_halves(bytes: &[u8], rows: u64, heads: u64) -> Vec<u8> {
    let (rows, heads) = (rows as usize, heads as usize);
    let row = bytes.len() / rows.max(1);
    let half = rows / heads.max(1) / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for head in 0..heads {
        for index in 0..half {
            for part in 0..2 {
                let from = (head * 2 * half + part * half + index) * row;
                out.extend_from_slice(&bytes[from..from + row]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_interleaved_within_heads() {
        // Two heads of four rows, each row two bytes.
        let rows: Vec<u8> = (0..8u8).flat_map(|row| [row, row + 100]).collect();
        let out = interleave_halves(&rows, 8, 2);
        let order: Vec<u8> = out.chunks(2).map(|row| row[0]).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert!(out.chunks(2).all(|row| row[1] == row[0] + 100));
    }
}
