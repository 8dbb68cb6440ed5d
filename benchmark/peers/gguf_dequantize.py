"""The reference's dequantization, for the benchmark program to take turns with.

    gguf_dequantize.py TYPE BLOCKS ROW_BYTES RESULT

Reads blocks from a file, dequantizes them once into the file RESULT, and then
once more for every line on standard input, answering with the nanoseconds spent.
"""

import sys
import time

import numpy as np
from gguf import GGMLQuantizationType, quants

np.seterr(all="ignore")  # random blocks have infinite scales among them
ggml_type = GGMLQuantizationType[sys.argv[1].upper()]
blocks = np.fromfile(sys.argv[2], np.uint8).reshape(-1, int(sys.argv[3]))
quants.dequantize(blocks, ggml_type).tofile(sys.argv[4])
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter_ns()
    result = quants.dequantize(blocks, ggml_type)
    spent = time.perf_counter_ns() - start
    del result
    print(spent, flush=True)
