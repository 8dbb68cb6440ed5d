#!/usr/bin/env bash
# macOS: type checks of all crates and their tests for aarch64-apple-darwin. Nothing is linked or run,
# which needs Apple's SDK; C code is left out by a compiler that makes empty files.
source "$(dirname "$0")/common.sh"
target=aarch64-apple-darwin

checked() {
    debian "$TOOLS_SUITE" $BUILD_PACKAGES -- env RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$build/macos" \
        CC_aarch64_apple_darwin="$here/stand-in-cc" CXX_aarch64_apple_darwin="$here/stand-in-cc" \
        AR_aarch64_apple_darwin="$here/stand-in-cc" SDKROOT=/ MACOSX_DEPLOYMENT_TARGET=11.0 \
        RUSTFLAGS="-D warnings" PYO3_NO_PYTHON=1 \
        cargo check --locked --target $target -Zbuild-std=std,panic_unwind,test "$@"
}

step macos "check libraries and tests" checked -p z4ai -p ztensor --features ztensor/remote --all-targets
step macos "check command line and tests" checked -p ztensor-cli --all-targets
step macos "check Python extension" checked -p ztensor-python
finish
