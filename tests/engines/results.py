"""What a scenario has seen working: the rows of the table in ``docs/engines.md``.

A scenario records each thing after the check that shows it and prints all at its end;
``tests/test_engines.py`` compares them with ``results.json``, which the table is made from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

RECORDED = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
_MARK = "RESULTS "
_BEGIN, _END = "<!-- table of engines: begin -->\n", "<!-- table of engines: end -->\n"

ENTRY_POINTS = {
    "vLLM": '`load_format="ztensor"` (group `vllm.general_plugins`)',
    "vLLM, weight transfer": "backend `ztensor` (the same group)",
    "transformers": "`z4ai.enable_hf()`",
    "accelerate": "the same",
    "diffusers": "the same",
    "peft": "the same",
    "sentence-transformers": "the same",
    "fsspec": "`ztensor://`, `ztensor-repo://` (group `fsspec.specs`)",
    "torch": "`stream.z4ai`, for `FileSystemWriter`",
    "llama.cpp": "`ztensor export --to gguf`",
}
"""The engines that scenarios run, in the order of the table."""

OTHERS = (
    (
        "SGLang",
        "interface of August 2026",
        "extra configuration `ztensor` (group `sglang.srt.plugins`)",
        "as vLLM",
        "**not run**: tested against stand-ins with its signatures",
    ),
    (
        "ComfyUI",
        "interface of October 2025",
        "folder `integrations/comfyui-ztensor`",
        "packed safetensors, `.zt`, `.zstn`",
        "**not run**: tested against stand-ins with its signatures",
    ),
)
"""Rows without a scenario here."""


class Results:
    """What was seen working of one engine."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, engine: str, version: str) -> None:
        assert engine in ENTRY_POINTS, engine
        # Without the local part, such as +cu130.
        version = version.split("+")[0]
        self._row = {"engine": engine, "version": version, "loads": [], "checked": []}
        Results.made.append(self._row)

    def loads(self, *what: str) -> None:
        """Something that the engine has loaded."""
        self._row["loads"] += [one for one in what if one not in self._row["loads"]]

    def checked(self, *what: str) -> None:
        """Something that was compared, or done with the engine."""
        self._row["checked"] += [one for one in what if one not in self._row["checked"]]


def print_all() -> None:
    """Prints what this process recorded, for the test that started it."""
    print(_MARK + json.dumps(Results.made), flush=True)


def printed(output: str) -> list[dict[str, Any]]:
    """What a scenario printed; a scenario that did not come to its end printed nothing."""
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    assert len(lines) == 1, output[-6000:]
    found: list[dict[str, Any]] = json.loads(lines[0].removeprefix(_MARK))
    return found


def recorded() -> dict[str, list[dict[str, Any]]]:
    """The results of each test, as they were recorded last."""
    found: dict[str, list[dict[str, Any]]] = json.loads(RECORDED.read_text())
    return found


def record(test: str, found: list[dict[str, Any]]) -> None:
    """Replaces the results of one test."""
    every = recorded() if RECORDED.exists() else {}
    every[test] = found
    RECORDED.write_text(json.dumps(dict(sorted(every.items())), indent=2) + "\n")


def table() -> str:
    """The table, from what was recorded."""
    rows = [row for test in recorded().values() for row in test]
    lines = ["| engine | tested | entry point | loads | checked |", "|---|---|---|---|---|"]
    for engine, entry_point in ENTRY_POINTS.items():
        own = [row for row in rows if row["engine"] == engine]
        if own:
            cells = [_merged(own, name) for name in ("loads", "checked")]
            versions = sorted({row["version"] for row in own}, key=_number, reverse=True)
            line = [engine, ", ".join(versions), entry_point, *cells]
            lines.append(f"| {' | '.join(line)} |")
    lines += [f"| {' | '.join(row)} |" for row in OTHERS]
    return "\n".join(lines) + "\n"


def _merged(rows: list[dict[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(what for row in rows for what in row[name]))


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def page_with(made: str) -> str:
    """The page with another table."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    assert after, f"{PAGE} has no table of engines"
    return before + _BEGIN + "\n" + made + "\n" + _END + after
