#!/usr/bin/env bash
# Windows: all crates and their tests are built for x86_64-pc-windows-gnu, with a standard library
# built from its sources; the tests of the libraries run under Wine.
source "$(dirname "$0")/common.sh"
target=x86_64-pc-windows-gnu

cross() {
    debian "$TOOLS_SUITE" $BUILD_PACKAGES gcc-mingw-w64-x86-64-win32 -- env RUSTC_BOOTSTRAP=1 \
        CARGO_TARGET_DIR="$build/windows" CARGO_PROFILE_DEV_DEBUG=false RUSTFLAGS="-D warnings" \
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc PYO3_NO_PYTHON=1 \
        cargo "$1" --locked --target $target -Zbuild-std=std,panic_unwind,test "${@:2}"
}

# Test programs of packages, one per line.
programs() {
    cross test --no-run "$@" 2>&1 | tee /dev/stderr | sed -nE 's/^ *Executable .*\((.*\.exe)\)$/\1/p'
}

wine() { # LIST OF PROGRAMS, FOLDER OF THE PACKAGE, ARGUMENTS
    debian trixie wine wine64 -- env WINEDEBUG=-all WINEPREFIX=/root/wine XDG_RUNTIME_DIR=/tmp bash -c '
        list=$1 folder=$2
        shift 2
        failed=0
        cd "$folder"
        while read -r program; do
            echo "running $program"
            wine "$program" "$@" < /dev/null || failed=1
        done < "$list"
        wineserver -k || true
        exit $failed' wine "$1" "$source/$2" "${@:3}"
}

compile() {
    programs -p "$1" "${@:2}" >"$build/windows-$1.list"
    sed -i "s|^target|$source/target|" "$build/windows-$1.list"
    [ -s "$build/windows-$1.list" ]
}

step windows "compile z4ai and tests" compile z4ai --lib --tests
step windows "compile ztensor and tests" compile ztensor --lib --tests
step windows "test z4ai (Wine)" wine "$build/windows-z4ai.list" crates/z4ai --test-threads 2
step windows "test ztensor (Wine)" wine "$build/windows-ztensor.list" crates/ztensor --test-threads 2
step windows "check command line" cross check -p ztensor-cli --bins
finish
