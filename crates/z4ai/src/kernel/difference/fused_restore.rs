//! The fused restore: elements are restored from the planes of their differences, hashed and
//! stored while they are in registers.

use crate::kernel::difference::Rule;
use crate::kernel::stripe_writer::{BURST, PartialLine, StripeWriter};
use crate::kernel::xxh3::{self, HASH_BLOCK};
use crate::simd::prefetch::{Hint, prefetch};
use crate::simd::vector::{Lane, Vector};
use crate::simd::{STRIPE, Sums};

/// Prefetch distance in bytes of elements.
const PREFETCH_DISTANCE: usize = 2048;

/// Restores whole hash blocks of elements `L`, of two or four bytes, from `P` planes; returns the
/// number of bytes. Without `reference`, `out` holds it. Pending bytes are those of a fused merge.
#[inline(always)]
pub(crate) fn restore_blocks<L: Lane, const P: usize>(
    isa: impl Vector,
    rule: Rule,
    reference: Option<&[u8]>,
    planes: [&[u8]; P],
    sums: &mut Sums,
    out: &mut [u8],
    pending: Option<&mut PartialLine>,
) -> usize {
    match rule {
        Rule::Xor => restore::<_, L, P, 0>(isa, reference, planes, sums, out, pending),
        Rule::ZigZag => restore::<_, L, P, 1>(isa, reference, planes, sums, out, pending),
        Rule::Ulp => restore::<_, L, P, 2>(isa, reference, planes, sums, out, pending),
    }
}

#[inline(always)]
fn restore<I: Vector, L: Lane, const P: usize, const RULE: u8>(
    isa: I,
    reference: Option<&[u8]>,
    planes: [&[u8]; P],
    sums: &mut Sums,
    out: &mut [u8],
    pending: Option<&mut PartialLine>,
) -> usize {
    // Pending bytes would overwrite the reference.
    assert!(reference.is_some() || pending.is_none());
    let mut done = out.len();
    if let Some(reference) = reference {
        done = done.min(reference.len());
    }
    for plane in planes {
        done = done.min(plane.len() * L::SIZE);
    }
    done = done / HASH_BLOCK * HASH_BLOCK;
    let blocks = out[..done].as_chunks_mut::<HASH_BLOCK>().0;
    let mut local: Sums = *sums;
    let mut writer = StripeWriter::new(isa, pending.as_deref(), blocks.as_ptr().addr());
    for (number, block) in blocks.iter_mut().enumerate() {
        let bursts = block.as_chunks_mut::<{ BURST * STRIPE }>().0;
        for (burst, out) in bursts.iter_mut().enumerate() {
            let mut stripes = [isa.splat::<u8>(0); BURST];
            // A burst consumes one or two cache lines of every plane.
            let first = (number * HASH_BLOCK + burst * BURST * STRIPE) / L::SIZE;
            for plane in planes {
                let ahead = plane.as_ptr().wrapping_add(first + PREFETCH_DISTANCE / L::SIZE);
                prefetch(ahead, Hint::L1);
                if L::SIZE == 2 {
                    prefetch(ahead.wrapping_add(STRIPE), Hint::L1);
                }
            }
            for (i, stripe) in stripes.iter_mut().enumerate() {
                let at = burst * BURST + i;
                let place = number * HASH_BLOCK + at * STRIPE;
                let first = place / L::SIZE;
                let reference = match reference {
                    Some(reference) => &reference[place..place + STRIPE],
                    None => &out[i * STRIPE..(i + 1) * STRIPE],
                };
                prefetch(reference.as_ptr().wrapping_add(PREFETCH_DISTANCE), Hint::L1);
                let Some(reference) = reference.first_chunk() else { unreachable!("a whole stripe") };
                let mut difference = isa.splat::<u8>(0);
                for (byte, plane) in planes.iter().enumerate() {
                    let bytes = isa.zero_extend::<L>(&plane[first..first + L::COUNT]);
                    difference = match byte {
                        0 => bytes,
                        _ => isa.or(difference, isa.shl::<L>(bytes, 8 * byte as u32)),
                    };
                }
                *stripe = restored::<I, L, RULE>(isa, isa.load(reference), difference);
                local = isa.accumulate(local, isa.bytes(*stripe), xxh3::secret(at * 8));
            }
            writer.write(stripes, out);
        }
        local = xxh3::scramble(local);
    }
    *sums = local;
    writer.finish(pending);
    done
}

/// The elements that differ so from the reference.
#[inline(always)]
fn restored<I: Vector, L: Lane, const RULE: u8>(isa: I, reference: I::V, difference: I::V) -> I::V {
    if RULE == 0 {
        return isa.xor(reference, difference);
    }
    let one = isa.splat::<L>(1);
    let negative = isa.sub::<L>(isa.splat::<L>(0), isa.and(difference, one));
    let step = isa.xor(isa.shr::<L>(difference, 1), negative);
    if RULE == 1 {
        return isa.add::<L>(reference, step);
    }
    // Floats in order: x ^ (x < 0 ? all but the sign : 0).
    let magnitude = isa.splat::<L>(u64::MAX >> (65 - 8 * L::SIZE));
    let ordered = isa.xor(reference, isa.and(isa.signs::<L>(reference), magnitude));
    let moved = isa.add::<L>(ordered, step);
    isa.xor(moved, isa.and(isa.signs::<L>(moved), magnitude))
}
