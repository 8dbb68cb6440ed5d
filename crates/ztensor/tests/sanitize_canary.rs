//! A deliberate overflow, by which `make sanitize` knows that the sanitizer is at work.

/// Reads one byte behind an allocation. Ignored, except by `make sanitize`, which expects it to be
/// reported and would fail if it passed.
#[test]
#[ignore = "overflows on purpose"]
fn a_read_behind_an_allocation_is_caught() {
    let bytes = std::hint::black_box(vec![1u8; 16]);
    let behind = std::hint::black_box(bytes.len());
    // SAFETY: none, and that is the point: the sanitizer ends the process here. It runs only under
    // one, where the byte behind an allocation belongs to a guard zone.
    let byte = unsafe { std::ptr::read_volatile(bytes.as_ptr().add(behind)) };
    println!("the byte behind 16 bytes is {byte}: no sanitizer is at work");
}
