//! Prints the SIMD levels that the tests are run at besides the machine's best one, one per line;
//! the levels that the machine lacks are named on standard error. `make test` reads it.

use z4ai::SimdLevel;

fn main() {
    let available: Vec<SimdLevel> = SimdLevel::available().collect();
    for level in SimdLevel::all().filter(|level| !available.contains(level)) {
        eprintln!("skipped: this machine lacks {level}");
    }
    for level in &available[..available.len() - 1] {
        println!("{level}");
    }
}
