#!/usr/bin/env bash
# WebAssembly: the codec and the library for wasm32-unknown-unknown, and viewer.html of them, in
# target/viewer.html; tests/test_viewer.py then opens it in Chromium.
source "$(dirname "$0")/common.sh"
target=wasm32-unknown-unknown

cross() {
    debian "$TOOLS_SUITE" $BUILD_PACKAGES libstd-rust-dev-wasm32 clang lld llvm -- \
        env CARGO_TARGET_DIR="$build/wasm" RUSTFLAGS="-D warnings" CC_wasm32_unknown_unknown=clang AR_wasm32_unknown_unknown=llvm-ar \
        CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="${WASM_LINKER:-wasm-ld}" \
        cargo "$1" --locked --target $target "${@:2}"
}

page() {
    cross build --profile viewer -p ztensor-viewer --lib &&
        python3 crates/viewer/build.py "$build/wasm/$target/viewer/ztensor_viewer.wasm" target/viewer.html
}

step wasm "check z4ai" cross check -p z4ai
step wasm "check ztensor" cross check -p ztensor
step wasm "build viewer.html" page
# The tests write their files with the Python package.
if .venv/bin/python -c "import ztensor" 2>/dev/null; then
    step wasm "test viewer.html (Chromium)" .venv/bin/pytest -q tests/test_viewer.py
else
    note wasm "test viewer.html (Chromium)" "not run: needs make install"
fi
finish
