"""z4ai 0.2's model deltas, for the benchmark program to take turns with.

    model_delta.py make|apply BASE TARGET DELTA

Makes DELTA of the two files BASE and TARGET, or writes TARGET from BASE and DELTA, once and
then once more for every line on standard input, answering with the nanoseconds spent.
"""

import sys
import time

import z4ai
from z4ai import model_delta

if not z4ai.__version__.startswith("0.2."):
    raise SystemExit("another version of the peer")
command, base, target, delta = sys.argv[1:]


def work() -> None:
    if command == "make":
        model_delta.compress_file(target, base, delta)
    else:
        model_delta.decompress_file(delta, base, target)


work()
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter_ns()
    work()
    print(time.perf_counter_ns() - start, flush=True)
