//! `config.json` of a model, and the metadata that llama.cpp makes of it.

use serde_json::Value as Json;
use ztensor::{Attributes, DType};

use crate::failure::Failure;

/// An architecture whose form is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Qwen2,
}

impl Architecture {
    /// Its name in llama.cpp, which is also the prefix of its metadata.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
        }
    }
}

/// How positions beyond those of the training are reached.
#[derive(Debug, Clone, PartialEq)]
enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    Yarn {
        factor: f64,
        original: u64,
    },
    /// Factors of the frequencies, as Llama 3.1 has them.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
}

/// What of a configuration matters here.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub architecture: Architecture,
    pub layers: u64,
    pub hidden: u64,
    pub feed_forward: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub vocabulary: u64,
    /// Whether the output layer is the embedding.
    pub tied: bool,
    /// Whether the attention has biases.
    pub attention_bias: bool,
    /// Ids of special tokens by their name: `bos`, `eos`, `pad`, `unk`.
    pub special: Vec<(&'static str, u64)>,
    context: u64,
    epsilon: f64,
    theta: f64,
    scaling: RopeScaling,
}

impl Config {
    /// Reads a configuration; what would change the model's results and has no place in llama.cpp is
    /// refused by name.
    pub fn parse(json: &Json) -> Result<Config, Failure> {
        let architecture = architecture(json)?;
        let number = |key: &str| {
            json[key].as_u64().filter(|number| *number > 0).ok_or_else(|| {
                Failure::bad_file(format!("config.json: {key} is missing, or no positive number"))
            })
        };
        let refuse =
            |what: &str| Err(Failure::usage(format!("config.json: {what}, which llama.cpp does not have")));
        if !json["quantization_config"].is_null() {
            return refuse("quantized weights (quantization_config)");
        }
        if let Some(act) = json["hidden_act"].as_str().filter(|act| *act != "silu") {
            return refuse(&format!("the activation {act:?}"));
        }
        let sliding = json["layer_types"]
            .as_array()
            .is_some_and(|layers| layers.iter().any(|layer| layer == "sliding_attention"));
        if json["use_sliding_window"].as_bool() == Some(true) || sliding {
            return refuse("sliding-window attention");
        }
        let (heads, hidden) = (number("num_attention_heads")?, number("hidden_size")?);
        let kv_heads = json["num_key_value_heads"].as_u64().unwrap_or(heads);
        let head_dim = json["head_dim"].as_u64().unwrap_or(hidden / heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || head_dim == 0 || !head_dim.is_multiple_of(2) {
            let message = "config.json: the numbers of heads and their dimensions do not fit each other";
            return Err(Failure::bad_file(message));
        }
        // transformers 5 has one object for theta and scaling, earlier releases two fields.
        let rope = if json["rope_parameters"].is_object() {
            &json["rope_parameters"]
        } else {
            &json["rope_scaling"]
        };
        let theta = json["rope_theta"].as_f64().or(rope["rope_theta"].as_f64()).unwrap_or(10_000.0);
        let partial = json["partial_rotary_factor"].as_f64().or(rope["partial_rotary_factor"].as_f64());
        if partial.is_some_and(|factor| factor != 1.0) {
            return refuse("rotary embeddings of a part of each head");
        }
        let special = ["bos", "eos", "pad", "unk"].into_iter().filter_map(|name| {
            let id = &json[format!("{name}_token_id")];
            Some((name, id.as_u64().or(id[0].as_u64())?))
        });
        let context = number("max_position_embeddings")?;
        Ok(Config {
            architecture,
            layers: number("num_hidden_layers")?,
            hidden,
            feed_forward: number("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            vocabulary: number("vocab_size")?,
            tied: json["tie_word_embeddings"].as_bool().unwrap_or(false),
            attention_bias: json["attention_bias"].as_bool().unwrap_or(architecture == Architecture::Qwen2),
            special: special.collect(),
            context,
            epsilon: json["rms_norm_eps"].as_f64().unwrap_or(1e-6),
            theta,
            scaling: scaling(rope, context)?,
        })
    }

    /// The metadata of a file, but for its vocabulary.
    pub fn attributes(&self, name: &str, file_type: Option<DType>) -> Attributes {
        let prefix = self.architecture.name();
        // Numbers of `llama_ftype`.
        let file_type = match file_type {
            Some(DType::F16) => 1u32,
            Some(DType::BF16) => 32,
            _ => 0,
        };
        let mut attributes = Attributes::new();
        let mut put = |key: &str, value: ztensor::Value| attributes.insert(key.to_owned(), value);
        put("general.architecture", prefix.into());
        put("general.type", "model".into());
        put("general.name", name.into());
        put("general.file_type", file_type.into());
        put("general.quantization_version", 2u32.into());
        let mut put = |key: &str, value: ztensor::Value| attributes.insert(format!("{prefix}.{key}"), value);
        put("vocab_size", self.vocabulary.into());
        put("context_length", self.context.into());
        put("embedding_length", self.hidden.into());
        put("block_count", self.layers.into());
        put("feed_forward_length", self.feed_forward.into());
        put("attention.head_count", self.heads.into());
        put("attention.head_count_kv", self.kv_heads.into());
        put("attention.key_length", self.head_dim.into());
        put("attention.value_length", self.head_dim.into());
        put("attention.layer_norm_rms_epsilon", single(self.epsilon));
        put("rope.dimension_count", self.head_dim.into());
        put("rope.freq_base", single(self.theta));
        match self.scaling {
            RopeScaling::None | RopeScaling::Llama3 { .. } => {}
            RopeScaling::Linear { factor } => {
                put("rope.scaling.type", "linear".into());
                put("rope.scaling.factor", single(factor));
            }
            RopeScaling::Yarn { factor, original } => {
                put("rope.scaling.type", "yarn".into());
                put("rope.scaling.factor", single(factor));
                put("rope.scaling.original_context_length", original.into());
            }
        }
        attributes
    }

    /// What each rotary frequency is divided by, where they have factors of their own.
    pub fn rope_factors(&self) -> Option<Vec<f32>> {
        let RopeScaling::Llama3 { factor, low, high, original } = self.scaling else { return None };
        let factors = (0..self.head_dim / 2).map(|index| {
            let frequency = self.theta.powf(-2.0 * index as f64 / self.head_dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        });
        Some(factors.map(|factor| factor as f32).collect())
    }
}

/// A number that the file has in 32 bits.
fn single(number: f64) -> ztensor::Value {
    f64::from(number as f32).into()
}

fn architecture(json: &Json) -> Result<Architecture, Failure> {
    let name = json["architectures"][0].as_str().or(json["model_type"].as_str()).unwrap_or("no architecture");
    match name {
        "LlamaForCausalLM" => Ok(Architecture::Llama),
        "Qwen2ForCausalLM" => Ok(Architecture::Qwen2),
        other => Err(Failure::usage(format!(
            "config.json: {} cannot be written for llama.cpp: LlamaForCausalLM and Qwen2ForCausalLM can",
            format_args!("{other:?}")
        ))),
    }
}

fn scaling(rope: &Json, context: u64) -> Result<RopeScaling, Failure> {
    let kind = rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default");
    let number = |key: &str| {
        rope[key].as_f64().filter(|number| number.is_finite() && *number > 0.0).ok_or_else(|| {
            Failure::bad_file(format!("config.json: the scaling {kind:?} of rotary embeddings needs {key}"))
        })
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "yarn" => {
            // Refused where they differ from what llama.cpp computes by itself.
            for key in ["attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"] {
                if !rope[key].is_null() {
                    let message = format!("config.json: YaRN with {key}, which is not written for llama.cpp");
                    return Err(Failure::usage(message));
                }
            }
            let original = rope["original_max_position_embeddings"].as_u64().unwrap_or(context);
            Ok(RopeScaling::Yarn { factor: number("factor")?, original })
        }
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(Failure::bad_file("config.json: low_freq_factor is not below high_freq_factor"));
            }
            let (factor, original) = (number("factor")?, number("original_max_position_embeddings")?);
            Ok(RopeScaling::Llama3 { factor, low, high, original })
        }
        other => Err(Failure::usage(format!(
            "config.json: the scaling {} of rotary embeddings is not written for llama.cpp",
            format_args!("{other:?}")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama() -> Json {
        json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": [2, 3],
        })
    }

    #[test]
    fn both_forms_of_rotary_parameters_are_read() {
        let mut old = llama();
        old["rope_theta"] = json!(500000.0);
        old["rope_scaling"] = json!({"rope_type": "linear", "factor": 4.0});
        let mut new = llama();
        new["rope_parameters"] = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0});
        let (old, new) = (Config::parse(&old).unwrap(), Config::parse(&new).unwrap());
        assert_eq!(old, new);
        assert_eq!((old.theta, old.scaling.clone()), (500000.0, RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(old.special, [("bos", 1), ("eos", 2)]);
        assert_eq!(Config::parse(&llama()).unwrap().head_dim, 16);
    }

    #[test]
    fn factors_of_llama_3_lie_between_one_and_the_factor() {
        let mut config = llama();
        config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        });
        let factors = Config::parse(&config).unwrap().rope_factors().unwrap();
        assert_eq!((factors.len(), factors[0], factors[7]), (8, 1.0, 8.0));
        assert!(factors.is_sorted());
    }

    #[test]
    fn what_llama_cpp_would_compute_otherwise_is_refused_by_name() {
        for (key, value, named) in [
            ("architectures", json!(["MixtralForCausalLM"]), "MixtralForCausalLM"),
            ("architectures", json!([]), "no architecture"),
            ("hidden_act", json!("gelu"), "gelu"),
            ("use_sliding_window", json!(true), "sliding"),
            ("quantization_config", json!({}), "quantization_config"),
            ("partial_rotary_factor", json!(0.5), "part of each head"),
            ("rope_scaling", json!({"rope_type": "longrope"}), "longrope"),
            ("rope_scaling", json!({"type": "linear"}), "factor"),
            ("num_key_value_heads", json!(3), "heads"),
            ("hidden_size", json!(null), "hidden_size"),
            ("vocab_size", json!(-1), "vocab_size"),
        ] {
            let mut config = llama();
            config[key] = value;
            let failure = Config::parse(&config).unwrap_err().into_error();
            assert!(failure.to_string().contains(named), "{key}: {failure}");
        }
    }
}
