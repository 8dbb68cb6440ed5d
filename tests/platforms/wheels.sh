#!/usr/bin/env bash
# The wheels of Linux and the source distribution, in dist/: x86-64 and AArch64, for glibc 2.17 and
# later (manylinux2014) and, where a standard library can be built, for musl. Zig (from PyPI) links
# against the symbols of the oldest system; auditwheel, abi3audit and a look at the symbols check it.
# Interpreters without the global lock have no stable ABI: one more wheel for 3.14t.
# WHEEL_PROFILE=demo builds in a fraction of the time, to try the wheels rather than to publish them.
# `wheels.sh NAME...` builds only some of x86_64, free-threaded, aarch64, x86_64-musl, aarch64-musl, sdist.
source "$(dirname "$0")/common.sh"
wanted=${*:-x86_64 free-threaded aarch64 x86_64-musl aarch64-musl sdist}
GLIBC=2_17
tools=/opt/wheels
profile=${WHEEL_PROFILE:-release}
packages="$BUILD_PACKAGES libstd-rust-dev:arm64 patchelf binutils"

inside() {
    debian "$TOOLS_SUITE" $packages -- "$@"
}

install_tools() {
    inside bash -c "test -x $tools/bin/maturin || python3 -m venv $tools
        $tools/bin/pip install --quiet 'maturin>=1.14,<2' ziglang cargo-zigbuild auditwheel abi3audit"
}

wheel() { # TARGET COMPATIBILITY, then options of maturin
    local target=$1 compatibility=$2 interpreter=PYO3_NO_PYTHON=1
    shift 2
    [ -z "${python:-}" ] || interpreter=PYO3_PYTHON=$python
    inside env PATH="$tools/bin:/usr/bin:/bin" CARGO_TARGET_DIR="$build/${folder:-wheels}" "$interpreter" \
        RUSTC_BOOTSTRAP="${bootstrap:-}" RUSTFLAGS="${flags:-}" CARGO_PROFILE_RELEASE_DEBUG=false \
        maturin build --profile "$profile" --zig --locked --strip --out dist --target "$target" \
        --compatibility "$compatibility" "$@"
}

# The newest symbols of glibc that the extension asks for, and that it is no later than claimed; with musl,
# that nothing but its libc is needed.
audited() { # GLOB
    local wheel
    for wheel in dist/$1; do
        inside bash -ec '
            folder=$(mktemp -d)
            python3 -m zipfile -e "$1" "$folder"
            library=$(ls "$folder"/ztensor/_native*.so)
            newest=$(readelf --wide --version-info "$library" | grep -oE "GLIBC_[0-9.]+" | sort -uV | tail -1)
            echo "$1: newest symbol version ${newest:-none}"
            test -z "$newest" || test "$(printf "%s\n%s\n" "$newest" "GLIBC_$3" | sort -V | tail -1)" = "GLIBC_$3"
            case $1 in
            *musllinux*)
                # auditwheel takes the libc.so of Debian, which is a script of the linker, for the one of musl.
                needed=$(readelf --wide --dynamic "$library" | sed -n "s/.*NEEDED.*\[\(.*\)\]/\1/p" | sort -u | tr "\n" " ")
                echo "$1: needs $needed"
                test "$needed" = "libc.so "
                ;;
            *x86_64*) "$2/bin/auditwheel" show "$1" ;;
            *) "$2/bin/auditwheel" show "$1" || echo "auditwheel cannot look at this architecture" ;;
            esac
            case $1 in *abi3*) "$2/bin/abi3audit" --strict "$1" ;; esac' audit "$wheel" "$tools" "${GLIBC/_/.}" || return 1
    done
}

free_threaded() {
    "$here/free-threaded.sh" &&
        python=$FREE_THREADED/bin/python3 wheel x86_64-unknown-linux-gnu "manylinux_$GLIBC" \
            --interpreter "$FREE_THREADED/bin/python3"
}

sdist() {
    rm -f dist/ztensor-*.tar.gz
    inside env PATH="$tools/bin:/usr/bin:/bin" maturin sdist --out dist
}

# As on any machine with Rust and a C compiler: pip alone, which gets maturin itself. Compiled dependencies
# are shared with the wheels.
install_sdist() {
    inside env CARGO_TARGET_DIR="$build/wheels" RUSTC_BOOTSTRAP= \
        MATURIN_PEP517_ARGS="--profile $profile --target x86_64-unknown-linux-gnu" bash -ec '
        python3 -m venv --clear /opt/sdist
        /opt/sdist/bin/pip install --quiet $(realpath dist/ztensor-*.tar.gz)
        script=$(sed -n "/^SCRIPT = /,/^\"\"\"\$/p" tests/test_wheel.py | sed "1d;\$d")
        cd "$(mktemp -d)"
        /opt/sdist/bin/python -c "$script"
        /opt/sdist/bin/ztensor info x.zt'
}

mkdir -p dist
step wheels "tools" install_tools
for part in $wanted; do
    case $part in
    free-threaded)
        step wheels "x86_64, free-threaded (3.14t)" free_threaded
        step wheels "audit x86_64, free-threaded" audited "ztensor-*cp314t-manylinux*x86_64.whl"
        ;;
    sdist)
        step wheels "source distribution" sdist
        step wheels "install from the source distribution" install_sdist
        ;;
    *-musl)
        # No standard library for musl in Debian: it is built from its sources. RUSTC_BOOTSTRAP changes how some
        # dependencies are built, so these have a build folder of their own.
        folder=wheels-musl bootstrap=1 flags="-C target-feature=-crt-static" step wheels "$part" wheel "${part%-musl}-unknown-linux-musl" \
            musllinux_1_2 -Z build-std=std,panic_abort,panic_unwind
        step wheels "audit $part" audited "ztensor-*abi3-musllinux*${part%-musl}.whl"
        ;;
    *)
        step wheels "$part" wheel "$part-unknown-linux-gnu" "manylinux_$GLIBC"
        step wheels "audit $part" audited "ztensor-*abi3-manylinux*$part.whl"
        ;;
    esac
done
finish
