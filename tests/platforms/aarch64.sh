#!/usr/bin/env bash
# AArch64 Linux: the tests of the libraries and of the command line, cross-compiled and run under
# qemu-aarch64; then the wheel, if `make wheels` made one, with the Python tests that need no torch.
# Slow: an hour and more on two cores. `aarch64.sh NAME...` runs only z4ai, portable, ztensor, cli or python.
source "$(dirname "$0")/common.sh"
target=aarch64-unknown-linux-gnu
wanted=${*:-z4ai portable ztensor cli python}

cross() {
    debian "$TOOLS_SUITE" $BUILD_PACKAGES libstd-rust-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user -- \
        env CARGO_TARGET_DIR="$build/aarch64" CARGO_PROFILE_DEV_DEBUG=false RUSTFLAGS="-D warnings" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
        TEST_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
        Z4AI_CPU="${level:-}" cargo test --locked --no-fail-fast --target $target "$@"
}

for part in $wanted; do
    case $part in
    z4ai) step aarch64 "test z4ai (qemu)" cross -p z4ai --lib --tests ;;
    portable) level=portable step aarch64 "test z4ai, portable (qemu)" cross -p z4ai --lib ;;
    # Left out: tests that start themselves as a child, which an emulator of one process cannot.
    ztensor) step aarch64 "test ztensor (qemu)" cross -p ztensor --lib --tests -- \
        --skip killed_at_any_moment --skip read_only_files_and_folders ;;
    cli) step aarch64 "test command line (qemu)" cross -p ztensor-cli --lib ;;
    python) "$here/python.sh" aarch64 || failures=$((failures + 1)) ;;
    *) echo "unknown part: $part" >&2; exit 2 ;;
    esac
done
finish
