//! What libraries state in JSON beside the tensors of a quantized weight.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::json::Scanner;

/// Longest text that is parsed. (limit)
pub(super) const MAX_TEXT: u64 = 1 << 16;

/// The `quant_state` of bitsandbytes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct BitsandbytesState {
    /// Elements to a scale.
    pub(super) block: u64,
    /// The type that the weight had.
    pub(super) dtype: Option<DType>,
    pub(super) shape: Vec<u64>,
    /// Scales to a scale of scales, and what is added to each scale.
    pub(super) nested: Option<(u64, f32)>,
}

impl BitsandbytesState {
    pub(super) fn parse(bytes: &[u8]) -> Result<BitsandbytesState> {
        let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
        let (mut state, mut nested_block, mut offset) = (BitsandbytesState::default(), None, None);
        let mut json = Scanner::new(text);
        json.object(|json, key| {
            match &*key {
                "blocksize" => state.block = json.u64()?,
                "nested_blocksize" => nested_block = Some(json.u64()?),
                "dtype" => state.dtype = float(&json.string()?),
                "shape" => json.array(|json| {
                    state.shape.push(json.u64()?);
                    Ok(())
                })?,
                "nested_offset" => {
                    json.peek();
                    let start = json.position();
                    json.skip()?;
                    let number = text[start..json.position()].parse::<f64>().map_err(|_| broken())?;
                    offset = Some(number as f32);
                }
                _ => json.skip()?,
            }
            Ok(())
        })?;
        json.end()?;
        state.nested = nested_block.zip(offset);
        match state.block > 0 && state.nested.is_none_or(|(block, _)| block > 0) {
            true => Ok(state),
            false => Err(broken()),
        }
    }
}

fn broken() -> Error {
    Error::corrupt("schemes.state", "the description of the quantization is not what its library writes")
}

fn float(name: &str) -> Option<DType> {
    match name {
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        "float32" => Some(DType::F32),
        _ => None,
    }
}

/// The class of a torchao tensor, with what tells its layouts apart.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TorchaoState {
    /// `MXTensor`, for example.
    pub(super) class: String,
    /// `float8_e4m3fn`, for example.
    pub(super) elements: String,
    /// Elements to a scale, along the last dimension.
    pub(super) block: u64,
    /// Scales are in the order of a GPU's matrix unit.
    pub(super) swizzled: bool,
}

impl TorchaoState {
    pub(super) fn parse(text: &str) -> Result<TorchaoState> {
        let mut state = TorchaoState::default();
        let mut json = Scanner::new(text);
        json.object(|json, key| match &*key {
            "_type" => {
                state.class = json.string()?.into_owned();
                Ok(())
            }
            "_data" => json.object(|json, key| match (&*key, json.peek()) {
                ("elem_dtype", Some(b'"')) => {
                    state.elements = json.string()?.into_owned();
                    Ok(())
                }
                ("elem_dtype", Some(b'{')) => json.object(|json, key| match &*key {
                    "_data" => {
                        state.elements = json.string()?.into_owned();
                        Ok(())
                    }
                    _ => json.skip(),
                }),
                ("block_size", Some(b'0'..=b'9')) => {
                    state.block = json.u64()?;
                    Ok(())
                }
                ("is_swizzled_scales", Some(b't')) => {
                    state.swizzled = true;
                    json.skip()
                }
                _ => json.skip(),
            }),
            _ => json.skip(),
        })?;
        json.end()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bitsandbytes_writes() {
        let text = br#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 96],
            "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.125e0}"#;
        let state = BitsandbytesState::parse(text).unwrap();
        let nested = Some((256, 0.125));
        assert_eq!(
            state,
            BitsandbytesState { block: 64, dtype: Some(DType::BF16), shape: vec![8, 96], nested }
        );
        for broken in [
            "",
            "[]",
            "{",
            "{}",
            r#"{"blocksize": 0}"#,
            r#"{"blocksize": 64} 1"#,
            r#"{"blocksize": 64, "nested_blocksize": 0, "nested_offset": 1}"#,
            r#"{"blocksize": 64, "nested_offset": "x"}"#,
            r#"{"blocksize": 64, "shape": [1, -2]}"#,
        ] {
            assert!(BitsandbytesState::parse(broken.as_bytes()).is_err(), "{broken}");
        }
        assert!(BitsandbytesState::parse(&[0xff]).is_err());
    }

    #[test]
    fn what_torchao_writes() {
        let text = r#"{"_type": "MXTensor", "_data": {"elem_dtype": {"_type": "torch.dtype", "_data":
            "float4_e2m1fn_x2"}, "block_size": 32, "act_quant_kwargs": null, "is_swizzled_scales": true}}"#;
        let state = TorchaoState::parse(text).unwrap();
        let (class, elements) = ("MXTensor".to_owned(), "float4_e2m1fn_x2".to_owned());
        assert_eq!(state, TorchaoState { class, elements, block: 32, swizzled: true });
        assert!(TorchaoState::parse(r#"{"_type": 1}"#).is_err());
        let row = r#"{"_type": "Float8Tensor", "_data": {"block_size": [1, 128], "mm_config": null}}"#;
        assert_eq!(TorchaoState::parse(row).unwrap().block, 0);
    }
}
