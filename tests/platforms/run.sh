#!/usr/bin/env bash
# Runs a crate's test programs in the crate's folder, as cargo does.
#
#   run.sh LIST CRATE RUNNER... -- ARGUMENT...
#
# LIST is what programs.py made; RUNNER is an emulator, the arguments are those of the programs. PROGRAMS of
# them (2) run at a time: most end with one long test, which keeps one processor busy. Each one's output is
# printed as a whole.
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
outputs=$(mktemp --directory)
trap 'rm -rf "$outputs"' EXIT

run() { # PROGRAM ARGUMENT...
    local name start=$SECONDS status=0
    name=$(basename "$1")
    # Tests send SIGHUP, which `nohup` would have ignored here and in what is started here.
    env --default-signal=HUP "${runner[@]}" "$@" </dev/null >"$outputs/$name" 2>&1 || status=$?
    flock "$outputs" cat "$outputs/$name"
    # In a file: bash forgets how a job ended once it has been listed.
    [ $status = 0 ] || echo "$name: exit status $status" | tee -a "$outputs/.failed"
    echo "$name: $((SECONDS - start)) s"
}

mapfile -t programs < <(sed -n "s/^$crate //p" "$list")
[ ${#programs[@]} != 0 ] || { echo "$list has no programs of $crate" >&2; exit 2; }
for program in "${programs[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge "${PROGRAMS:-2}" ]; do
        wait -n
    done
    run "$program" "$@" &
done
wait
test ! -e "$outputs/.failed"
