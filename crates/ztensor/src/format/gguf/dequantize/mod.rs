//! Blocks to `f32`, bit by bit what the format's reference implementation in
//! Python computes: the same operations in the same order, each rounded.
//!
//! A type is one function from a block to its elements, in the file of its
//! family. They are plain loops over fixed sizes that the compiler vectorises;
//! [`simd::run`] gives it AVX2 where there is one. Threads take ranges of blocks.

mod codebook;
mod codebook_grids;
mod float;
mod k;
mod simple;

use super::types::GgmlType;
use crate::base::{parallel, simd};
use crate::error::{Error, Result};

/// Elements that one thread takes at a time: large enough that starting is
/// nothing, small enough that the work spreads.
const TASK_ELEMENTS: usize = 64 << 10;

/// Tasks for which one more thread is started, at least.
const TASKS_PER_THREAD: usize = 4;

/// Turns `blocks` of a type into `f32`.
///
/// `blocks` is a whole number of blocks and `out` has exactly the elements they
/// hold; `threads` is how many may work on it, 0 for one per core. Every finite
/// or infinite result has the bits that the reference implementation computes;
/// where a scale in the file is not a number, so is the result.
///
/// Integer types and `f64` are not quantized and refused: read them as they are.
pub fn dequantize(ggml_type: GgmlType, blocks: &[u8], out: &mut [f32], threads: usize) -> Result<()> {
    let count = blocks.len() as u64 / ggml_type.block_bytes();
    if count.checked_mul(ggml_type.block_elements()) != Some(out.len() as u64)
        || !(blocks.len() as u64).is_multiple_of(ggml_type.block_bytes())
    {
        return Err(Error::invalid(format!(
            "{} bytes are not {} elements of {ggml_type}, whose blocks hold {} elements in {} bytes",
            blocks.len(),
            out.len(),
            ggml_type.block_elements(),
            ggml_type.block_bytes()
        )));
    }
    Dequantize { ggml_type, threads, portable: false }.run(blocks, out)
}

/// How to go about it.
struct Dequantize {
    ggml_type: GgmlType,
    threads: usize,
    /// Leave out the instructions that not every processor has.
    portable: bool,
}

impl Dequantize {
    fn run(&self, blocks: &[u8], out: &mut [f32]) -> Result<()> {
        match self.ggml_type {
            GgmlType::F32 => self.blocks::<4, 1>(blocks, out, float::f32),
            GgmlType::F16 => self.blocks::<2, 1>(blocks, out, float::f16),
            GgmlType::BF16 => self.blocks::<2, 1>(blocks, out, float::bf16),
            GgmlType::MXFP4 => self.blocks::<17, 32>(blocks, out, float::mxfp4),
            GgmlType::NVFP4 => self.blocks::<36, 64>(blocks, out, float::nvfp4),
            GgmlType::Q1_0 => self.blocks::<18, 128>(blocks, out, simple::q1_0),
            GgmlType::Q4_0 => self.blocks::<18, 32>(blocks, out, simple::q4_0),
            GgmlType::Q4_1 => self.blocks::<20, 32>(blocks, out, simple::q4_1),
            GgmlType::Q5_0 => self.blocks::<22, 32>(blocks, out, simple::q5_0),
            GgmlType::Q5_1 => self.blocks::<24, 32>(blocks, out, simple::q5_1),
            GgmlType::Q8_0 => self.blocks::<34, 32>(blocks, out, simple::q8_0),
            GgmlType::TQ1_0 => self.blocks::<54, 256>(blocks, out, simple::tq1_0),
            GgmlType::TQ2_0 => self.blocks::<66, 256>(blocks, out, simple::tq2_0),
            GgmlType::Q2_K => self.blocks::<84, 256>(blocks, out, k::q2_k),
            GgmlType::Q3_K => self.blocks::<110, 256>(blocks, out, k::q3_k),
            GgmlType::Q4_K => self.blocks::<144, 256>(blocks, out, k::q4_k),
            GgmlType::Q5_K => self.blocks::<176, 256>(blocks, out, k::q5_k),
            GgmlType::Q6_K => self.blocks::<210, 256>(blocks, out, k::q6_k),
            GgmlType::Q8_K => self.blocks::<292, 256>(blocks, out, k::q8_k),
            GgmlType::IQ1_S => self.blocks::<50, 256>(blocks, out, codebook::iq1_s),
            GgmlType::IQ1_M => self.blocks::<56, 256>(blocks, out, codebook::iq1_m),
            GgmlType::IQ2_XXS => self.blocks::<66, 256>(blocks, out, codebook::iq2_xxs),
            GgmlType::IQ2_XS => self.blocks::<74, 256>(blocks, out, codebook::iq2_xs),
            GgmlType::IQ2_S => self.blocks::<82, 256>(blocks, out, codebook::iq2_s),
            GgmlType::IQ3_XXS => self.blocks::<98, 256>(blocks, out, codebook::iq3_xxs),
            GgmlType::IQ3_S => self.blocks::<110, 256>(blocks, out, codebook::iq3_s),
            GgmlType::IQ4_NL => self.blocks::<18, 32>(blocks, out, codebook::iq4_nl),
            GgmlType::IQ4_XS => self.blocks::<136, 256>(blocks, out, codebook::iq4_xs),
            GgmlType::F64 | GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64 => {
                Err(Error::invalid(format!("{} is not quantized: read it as it is", self.ggml_type)))
            }
        }
    }

    /// Applies `decode` to every block, in parallel.
    fn blocks<const BYTES: usize, const ELEMENTS: usize>(
        &self,
        blocks: &[u8],
        out: &mut [f32],
        decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]) + Copy + Send,
    ) -> Result<()> {
        debug_assert_eq!(BYTES as u64, self.ggml_type.block_bytes());
        debug_assert_eq!(ELEMENTS as u64, self.ggml_type.block_elements());
        let per_task = TASK_ELEMENTS / ELEMENTS;
        let tasks: Vec<_> = (blocks.as_chunks().0.chunks(per_task))
            .zip(out.as_chunks_mut().0.chunks_mut(per_task))
            .map(|(blocks, out)| Task { blocks, out, decode })
            .collect();
        let threads = parallel::resolve(self.threads).min(tasks.len().div_ceil(TASKS_PER_THREAD));
        parallel::for_each(threads, tasks, |task| {
            match self.portable {
                true => simd::Kernel::run(task),
                false => simd::run(task),
            }
            Ok(())
        })
    }
}

/// A range of blocks and where their elements go.
struct Task<'a, const BYTES: usize, const ELEMENTS: usize, F> {
    blocks: &'a [[u8; BYTES]],
    out: &'a mut [[f32; ELEMENTS]],
    decode: F,
}

impl<const BYTES: usize, const ELEMENTS: usize, F> simd::Kernel for Task<'_, BYTES, ELEMENTS, F>
where
    F: Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
{
    #[inline(always)]
    fn run(self) {
        for (block, out) in self.blocks.iter().zip(self.out) {
            (self.decode)(block, out);
        }
    }
}

/// `N` bytes of a block. Offsets are constants of the type's layout, so they are
/// inside it for every file or for none, and the tests have seen every type.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a field of the block")
}

/// The half-precision number at an offset of a block.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    float::half(u16::from_le_bytes(*part(block, at)))
}

#[cfg(test)]
mod tests;
