#!/usr/bin/env bash
# Runs a crate's test programs, one after the other, in the crate's folder as cargo does.
#
#   run.sh LIST CRATE RUNNER... -- ARGUMENT...
#
# LIST is what programs.py made; RUNNER is an emulator, the arguments are those of the programs.
set -uo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
list=$1 crate=$2
shift 2
runner=()
while [ "$1" != -- ]; do
    runner+=("$1")
    shift
done
shift
cd "$source/crates/$crate" || exit 2
failed=0
# On another descriptor: a program may read its standard input.
while read -r program <&3; do
    start=$SECONDS
    "${runner[@]}" "$program" "$@" </dev/null || failed=1
    echo "$(basename "$program"): $((SECONDS - start)) s"
done 3< <(sed -n "s/^$crate //p" "$list")
exit $failed
