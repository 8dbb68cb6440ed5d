# Sourced by the scripts of this folder: where things are, and a record of what ran where.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$source/tests/platforms
# Build folders are inside the sources, because those are what the Debian folders see.
build=$source/${PLATFORMS_BUILD:-target/cross}
records=$build/results
mkdir -p "$records" "$build/logs"
cd "$source"
platforms=${PLATFORMS:-$source/target/platforms}
# The Debian suite with the compilers: a recent Rust, with standard libraries for other targets.
TOOLS_SUITE=${TOOLS_SUITE:-testing}
# Packages of every build in it.
BUILD_PACKAGES="rustc cargo libstd-rust-dev rust-src gcc g++ libc6-dev make pkg-config python3 python3-venv"
# Tests of other platforms take longer to compile than to run: only loops over bytes
# and signatures are optimised.
FAST_BUILD="--config profile.dev.opt-level=0 --config build.incremental=false"
for package in z4ai z4ai-v1 blake3 crc32c crc32fast crypto-bigint elliptic-curve md-5 memchr p256 primeorder proptest rand rand_xorshift sha2 twox-hash \
    zlib-rs zstd-sys; do
    FAST_BUILD="$FAST_BUILD --config profile.dev.package.$package.opt-level=2"
done
FAST_BUILD="$FAST_BUILD --config profile.dev.package.ztensor.opt-level=1"
# Where CPython without its global lock is in it: see free-threaded.sh.
FREE_THREADED=/opt/python-free-threaded
failures=0

debian() {
    "$here/debian.sh" "$@"
}

# step PLATFORM WHAT COMMAND...: runs a command and records whether it passed, how many tests it ran
# and for how long. Its output is in target/cross/logs.
step() {
    local platform=$1 what=$2 start=$SECONDS log tests verdict=passed
    shift 2
    log="$build/logs/$platform-${what//[^a-zA-Z0-9]/-}.log"
    echo "== $platform: $what"
    if ! "$@" >"$log" 2>&1; then
        verdict=FAILED
        failures=$((failures + 1))
        tail -25 "$log"
        echo "== the whole output: $log"
    fi
    tests=$(sed -nE 's/^test result: [^.]*\. ([0-9]+) passed.*/\1/p; s/^=*[ ]*([0-9]+) passed.*/\1/p' "$log" |
        awk '{ total += $1 } END { print total + 0 }')
    [ "$tests" != 0 ] || tests=-
    printf '%s\t%s\t%s\t%s\t%s s\n' "$platform" "$what" "$verdict" "$tests" $((SECONDS - start)) \
        >"$records/$platform-${what//[^a-zA-Z0-9]/-}"
}

# note PLATFORM WHAT TEXT: records what could not be done, and why.
note() {
    printf '%s\t%s\t%s\t-\t-\n' "$1" "$2" "$3" >"$records/$1-${2//[^a-zA-Z0-9]/-}"
}

# finish: the table of everything that has run so far, here and in earlier targets.
finish() {
    { printf 'platform\twhat\tresult\ttests\ttime\n'; sort "$records"/*; } |
        awk -F'\t' '{ for (i = 1; i <= NF; i++) { row[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } }
            END { for (r = 1; r <= NR; r++) { line = ""
                for (i = 1; i <= 5; i++) line = line sprintf("%-" width[i] + 2 "s", row[r, i]); sub(/ +$/, "", line); print line } }'
    exit $((failures > 0))
}
