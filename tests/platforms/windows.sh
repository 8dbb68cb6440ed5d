#!/usr/bin/env bash
# Windows: all crates and their tests are built for x86_64-pc-windows-gnu, with a standard library
# built from its sources; the tests of the libraries run under Wine. `windows.sh NAME...` does only z4ai,
# ztensor or cli.
source "$(dirname "$0")/common.sh"
target=x86_64-pc-windows-gnu
wanted=${*:-z4ai ztensor cli}

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
    debian trixie wine wine64 -- env WINEDEBUG=-all WINEPREFIX=/var/tmp/wine XDG_RUNTIME_DIR=/tmp bash -c '
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

for part in $wanted; do
    case $part in
    z4ai | ztensor)
        step windows "compile $part and its tests" compile "$part" --lib --tests
        step windows "test $part (Wine)" wine "$build/windows-$part.list" "crates/$part" --test-threads 2
        ;;
    cli) step windows "check command line" cross check -p ztensor-cli --bins ;;
    *) echo "unknown part: $part" >&2; exit 2 ;;
    esac
done
finish
