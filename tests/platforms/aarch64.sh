#!/usr/bin/env bash
# AArch64 Linux: the tests of the libraries and of the command line, cross-compiled and run under
# qemu-user; then the wheel, if `make wheels` made one, with the Python tests that need no torch.
# Slow: an hour and more on two cores. `aarch64.sh NAME...` runs only z4ai, portable, ztensor, cli or python.
source "$(dirname "$0")/common.sh"
target=aarch64-unknown-linux-gnu
wanted=${*:-z4ai portable ztensor cli python}

# procps: tests send signals by `kill`.
inside() {
    debian "$TOOLS_SUITE" $BUILD_PACKAGES libstd-rust-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross libc6:arm64 libgcc-s1:arm64 qemu-user procps -- "$@"
}

# All crates at once, so that each is compiled with one set of features.
packages=
for part in $wanted; do
    case $part in
    z4ai | portable) packages="$packages -p z4ai" ;;
    ztensor) packages="$packages -p ztensor" ;;
    cli) packages="$packages -p ztensor-cli" ;;
    esac
done
compile() {
    inside env CARGO_TARGET_DIR="$build/aarch64" RUSTFLAGS="-D warnings" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
        cargo test --locked --target $target $FAST_BUILD --no-run --message-format=json-render-diagnostics \
        $packages --lib --tests | python3 "$here/programs.py" >"$build/aarch64.list"
}

# The libraries are those of libc6:arm64, in their own place: with a prefix the emulator opens another `/`.
# Of the damaged files that the readers must survive, a twentieth: all of them take an hour here, and what
# they test is not of the processor.
emulate() { # CRATE, then arguments of its tests
    EMULATE=aarch64 inside env ZTENSOR_DAMAGED_COPIES=1000 ${level:+Z4AI_CPU="$level"} \
        "$here/run.sh" "$build/aarch64.list" "$1" -- "${@:2}"
}

# Limits of memory would be those of the emulator, which does not start below 160 MB.
UNLIMITED="--skip limits::memory_is_bounded_by_the_largest_tensor --skip limits::inputs_of_frames_and_deltas_are_mapped"

[ -z "$packages" ] || step aarch64 "compile crates and tests" compile
for part in $wanted; do
    case $part in
    z4ai) step aarch64 "test z4ai (qemu)" emulate z4ai ;;
    portable) level=portable step aarch64 "test z4ai, portable (qemu)" emulate z4ai ;;
    ztensor) step aarch64 "test ztensor (qemu)" emulate ztensor ;;
    cli) step aarch64 "test command line (qemu)" emulate cli $UNLIMITED ;;
    python) "$here/python.sh" aarch64 || failures=$((failures + 1)) ;;
    *) echo "unknown part: $part" >&2; exit 2 ;;
    esac
done
finish
