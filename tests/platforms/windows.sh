#!/usr/bin/env bash
# Windows: all crates and their tests are built for x86_64-pc-windows-gnu, with a standard library
# built from its sources; the tests run under Wine. `windows.sh NAME...` does only z4ai, ztensor or cli.
source "$(dirname "$0")/common.sh"
target=x86_64-pc-windows-gnu
wanted=${*:-z4ai ztensor cli}

cross() {
    debian "$TOOLS_SUITE" $BUILD_PACKAGES gcc-mingw-w64-x86-64-win32 -- env RUSTC_BOOTSTRAP=1 \
        CARGO_TARGET_DIR="$build/windows" RUSTFLAGS="-D warnings" \
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc PYO3_NO_PYTHON=1 \
        cargo "$1" --locked --target $target -Zbuild-std=std,panic_unwind,test $FAST_BUILD "${@:2}"
}

# All crates at once, so that each is compiled with one set of features.
packages=
for part in $wanted; do
    case $part in
    z4ai | ztensor) packages="$packages -p $part" ;;
    cli) packages="$packages -p ztensor-cli" ;;
    *) echo "unknown part: $part" >&2; exit 2 ;;
    esac
done
compile() {
    cross test --no-run --message-format=json-render-diagnostics $packages --lib --tests |
        python3 "$here/programs.py" >"$build/windows.list"
}

# The server is started first: two programs at once would both do it, and one of them fails.
wine() { # CRATE, then arguments of its tests
    debian trixie wine wine64 -- env WINEDEBUG=-all WINEPREFIX=/var/tmp/wine XDG_RUNTIME_DIR=/tmp \
        bash -c 'wine wineboot --init && "$@"; status=$?; wineserver -k; exit $status' wine \
        "$here/run.sh" "$build/windows.list" "$1" wine -- "${@:2}"
}

step windows "compile crates and tests" compile
for part in $wanted; do
    case $part in
    cli) step windows "test command line (Wine)" wine cli --test-threads 2 ;;
    *) step windows "test $part (Wine)" wine "$part" --test-threads 2 ;;
    esac
done
finish
