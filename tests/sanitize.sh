#!/usr/bin/env bash
# Tests that read damaged and hostile input, in Rust and through the Python package, under
# AddressSanitizer, with the ordinary compiler. It has a target folder of its own; the first run
# builds everything. `tests/sanitize.sh rust` leaves out the part in Python.
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-unknown-linux-gnu
folder=$PWD/target/sanitize
runtime=$(gcc -print-file-name=libasan.so)
python=$PWD/.venv/bin/python
mkdir -p "$folder"

export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=$folder
# zstd's C code is instrumented, too. GCC marks constant arrays of a function, which it places in
# read-only data, as out of scope when the function returns and then reports their next use
# (ZSTD_selectBtGetAllMatches): that check is left out for C.
export CFLAGS=-fno-sanitize-address-use-after-scope
# Optimised enough for the codecs; more would only take longer to build.
export CARGO_PROFILE_DEV_OPT_LEVEL=1
# Leaks are no memory errors, and interpreters leave much behind; allocations that fail return null,
# as they do without a sanitizer, and are errors of ours.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1

tests() { # of a crate: its unit tests and the named suites
    local crate=$1
    shift
    cargo test --quiet --target $target -p "$crate" --lib "${@/#/--test=}"
}

echo "== a deliberate overflow is caught"
cargo test --quiet --target $target -p ztensor --test sanitize_canary --no-run
if cargo test --quiet --target $target -p ztensor --test sanitize_canary -- --ignored \
    >"$folder/canary.log" 2>&1; then
    cat "$folder/canary.log"
    echo "the overflow was not noticed: no sanitizer is at work" >&2
    exit 1
fi
grep -q "AddressSanitizer: heap-buffer-overflow" "$folder/canary.log"

echo "== Rust"
tests z4ai damage delta partial round_trip legacy_hostile
tests ztensor gguf hdf5 limits model_delta npz onnx pickle_hostile safetensors zstn zt zt_rules zt_z4ai
[ "${1:-}" != rust ] || exit 0

echo "== Python"
cargo build --quiet --target $target -p ztensor-python
rm -rf "$folder/python"
cp -r python "$folder/python"
rm -f "$folder"/python/ztensor/_native*.so
cp "$folder/$target/debug/lib_native.so" "$folder/python/ztensor/_native.abi3.so"
export PYTHONPATH=$folder/python LD_PRELOAD=$runtime
"$python" - <<'CHECK'
import ztensor._native
assert "/sanitize/" in ztensor._native.__file__, ztensor._native.__file__
CHECK
# Left out: a test that limits the address space, which then has no room for the sanitizer's shadow
# memory, and one that forks beside threads, where the sanitizer's allocator is not safe.
"$python" -m pytest -q -p no:cacheprovider tests/test_hostile.py tests/test_lengths.py \
    --deselect tests/test_hostile.py::test_a_declared_size_is_only_a_claim \
    --deselect tests/test_lengths.py::test_a_child_reads_whatever_its_parent_was_doing_when_it_forked
echo "== no errors of memory were found"
