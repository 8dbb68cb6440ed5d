#!/usr/bin/env bash
# The wheels of dist/ with interpreters other than the one that built them: their import, and the
# Python tests that need no torch. `python.sh NAME...` runs some of bookworm (3.11, the oldest Debian
# that has one), trixie (3.13), testing (the newest), free-threaded (3.14t), aarch64 (under qemu-aarch64).
source "$(dirname "$0")/common.sh"
wanted=${*:-bookworm trixie testing free-threaded}
# Files that use neither torch nor the other large libraries.
TESTS="tests/test_npz.py tests/test_numpy_api.py tests/test_threads.py tests/test_z4ai_chunked.py tests/test_z4ai_modules.py"
# The decoders in Python that the tests have: they do not use the extension for their work, and are too slow under an emulator.
DECODERS="tests/test_z4ai_decoder.py tests/test_zt_decoder.py"
NEEDED="numpy pytest ml_dtypes safetensors xxhash zstandard blake3"

native() {
    debian "$1" python3 python3-venv -- bash -ec '
        python3 -m venv --clear /opt/test
        /opt/test/bin/pip install --quiet --only-binary :all: $2
        /opt/test/bin/pip install --quiet --no-deps --force-reinstall $(ls dist/ztensor-*abi3-manylinux*x86_64.whl | tail -1)
        /opt/test/bin/python -VV
        ldd --version | head -1
        /opt/test/bin/python -m pytest -q $1' run "$TESTS $DECODERS" "$NEEDED"
}

# An arm64 system that is only unpacked, in the Debian folder with the emulator: its interpreter, and
# packages that are chosen for it by the pip of the machine's architecture.
emulated() {
    local root=$platforms/$TOOLS_SUITE/opt/arm64 package
    debian "$TOOLS_SUITE" python3 python3-venv qemu-user --
    if [ ! -e "$root/.complete" ]; then
        rm -rf "$root"
        debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 trixie "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
        for package in "$root"/var/cache/apt/archives/*.deb; do
            dpkg-deb --extract "$package" "$root"
        done
        rm "$root"/var/cache/apt/archives/*.deb
        touch "$root/.complete"
    fi
    EMULATE=aarch64 debian "$TOOLS_SUITE" -- bash -ec '
        python=$(ls /opt/arm64/usr/bin/python3.?? | tail -1)
        version=${python##*python}
        site=/opt/arm64-site
        rm -rf $site
        python3 -m venv --clear /opt/pip
        install() {
            /opt/pip/bin/pip install --quiet --target $site --only-binary :all: --python-version "$version" \
                --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 "$@"
        }
        install $2
        install --no-deps $(ls dist/ztensor-*abi3-manylinux*aarch64.whl | tail -1)
        export QEMU_LD_PREFIX=/opt/arm64 PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1
        $python -c "import platform, sys; print(sys.version, platform.machine())"
        $python -m pytest -q $1' run "$TESTS" "$NEEDED"
}

# What has wheels for an interpreter without the global lock, and the tests that need no more.
free_threaded() {
    debian "$TOOLS_SUITE" python3 -- bash -ec '
        "$1/bin/python3" -m venv --clear /opt/test-free-threaded
        python=/opt/test-free-threaded/bin/python
        $python -m pip install --quiet --only-binary :all: numpy pytest ml_dtypes
        $python -m pip install --quiet --no-deps --force-reinstall $(ls dist/ztensor-*cp314t*x86_64.whl | tail -1)
        $python -VV
        $python -m pytest -q $2' run "$FREE_THREADED" "$TESTS"
}

for part in $wanted; do
    case $part in
    free-threaded) step free-threaded "Python tests of the wheel" free_threaded ;;
    aarch64) step aarch64 "Python tests of the wheel (qemu)" emulated ;;
    *) step "$part" "Python tests of the wheel" native "$part" ;;
    esac
done
finish
