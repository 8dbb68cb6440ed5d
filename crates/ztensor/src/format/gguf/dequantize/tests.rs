//! Every type against the reference implementation's bits, on every path.

use super::*;

/// Random blocks of a type and the elements that the reference makes of them.
fn reference(ggml_type: GgmlType) -> Option<(Vec<u8>, Vec<f32>)> {
    let path = format!("{}/tests/data/gguf/dequantize/{ggml_type}.bin", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).ok()?;
    let (block, elements) = (ggml_type.block_bytes() as usize, ggml_type.block_elements() as usize);
    let (mut blocks, mut expected) = (Vec::new(), Vec::new());
    for pair in bytes.chunks_exact(block + 4 * elements) {
        blocks.extend_from_slice(&pair[..block]);
        expected.extend(pair[block..].as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)));
    }
    Some((blocks, expected))
}

/// Equal bits; a NaN may be any NaN, since which one depends on the processor.
fn assert_same(ggml_type: GgmlType, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{ggml_type}: element {i} is {found:e} instead of {expected:e}");
    }
}

#[test]
fn every_type_has_the_bits_of_the_reference() {
    let mut compared = 0;
    for ggml_type in GgmlType::ALL {
        let Some((blocks, expected)) = reference(ggml_type) else { continue };
        for portable in [false, true] {
            let mut found = vec![f32::NAN; expected.len()];
            Dequantize { ggml_type, threads: 1, portable }.run(&blocks, &mut found).unwrap();
            assert_same(ggml_type, &found, &expected);
        }
        // Enough blocks that several threads take several tasks each.
        let times = 10 * TASK_ELEMENTS / expected.len();
        let (blocks, expected) = (blocks.repeat(times), expected.repeat(times));
        let mut found = vec![f32::NAN; expected.len()];
        dequantize(ggml_type, &blocks, &mut found, 3).unwrap();
        assert_same(ggml_type, &found, &expected);
        compared += 1;
    }
    assert_eq!(compared, 25, "types that the reference knows");
}

#[test]
fn types_the_reference_does_not_know() {
    let mut signs = [0.0; 128];
    let mut block = [0; 18];
    block[..2].copy_from_slice(&half::f16::from_f32(-1.5).to_le_bytes());
    block[2] = 0b101;
    block[17] = 0x80;
    dequantize(GgmlType::Q1_0, &block, &mut signs, 1).unwrap();
    for (i, sign) in signs.into_iter().enumerate() {
        assert_eq!(sign, if [0, 2, 127].contains(&i) { -1.5 } else { 1.5 }, "{i}");
    }

    let mut elements = [0.0; 256];
    let mut block = [0; 292];
    block[..4].copy_from_slice(&0.3f32.to_le_bytes());
    (0..256).for_each(|i| block[4 + i] = i as u8);
    dequantize(GgmlType::Q8_K, &block, &mut elements, 1).unwrap();
    for (i, element) in elements.into_iter().enumerate() {
        assert_eq!(element, 0.3 * f32::from(i as u8 as i8));
    }

    let floats = [1.5f32, -0.0, f32::INFINITY, 1e-45];
    let mut copy = [0.0; 4];
    dequantize(GgmlType::F32, bytemuck::cast_slice(&floats), &mut copy, 1).unwrap();
    assert_eq!(copy.map(f32::to_bits), floats.map(f32::to_bits));
}

#[test]
fn lengths_that_do_not_fit_and_unquantized_types_are_refused() {
    let mut out = [0.0; 64];
    for (blocks, elements) in [(18, 31), (18, 64), (17, 32), (19, 32), (36, 32), (0, 32), (18, 0)] {
        let error = dequantize(GgmlType::Q4_0, &vec![0; blocks], &mut out[..elements], 1).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
    }
    assert!(dequantize(GgmlType::Q4_0, &[], &mut [], 0).is_ok());
    assert!(dequantize(GgmlType::I32, &[0; 4], &mut out[..1], 1).is_err());
}
