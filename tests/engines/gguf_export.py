"""llama.cpp runs what ``ztensor export --to gguf`` writes: logits and tokens as of transformers.

The argument is a folder with models and what transformers computes, made by the test that starts
this: torch is not needed here.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np
from results import Results, print_all


def check(path: Path) -> None:
    """Compares one model with the expectation of the same name."""
    expected = json.loads(path.with_suffix(".json").read_text())
    # A cache in float32: what differs then is the order of additions.
    engine = llama_cpp.Llama(
        str(path),
        logits_all=True,
        n_ctx=64,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        verbose=False,
    )
    ids = expected["ids"]
    engine.eval(ids)
    logits = np.load(path.with_suffix(".npy"))
    found = np.array(engine.scores[: len(ids)])
    difference = np.abs(found - logits).max()
    print(f"{path.name}: logits differ by {difference:.2g} of {np.abs(logits).max():.2g}")
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4, err_msg=path.name)
    for text, tokens in expected["texts"].items():
        own = engine.tokenize(text.encode(), add_bos=False, special=True)
        assert own == tokens, (path.name, text, own, tokens)
    engine.close()


def main() -> None:
    seen = Results(
        "llama.cpp", f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    )
    models = sorted(Path(sys.argv[1]).glob("*.gguf"))
    assert models
    for path in models:
        check(path)
    seen.loads("exported GGUF of Llama and Qwen2 models")
    seen.checked("logits and tokens as those of transformers", "scaled rotary embeddings")
    print_all()


if __name__ == "__main__":
    main()
