"""Pages of the API reference, made from the docstrings and signatures of the Python packages.

Read from the source, so that the site needs neither the compiled extension nor a framework.
"""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PYTHON = Path(__file__).parent.parent / "python"

PAGES: dict[str, list[str]] = {
    "api/ztensor.md": [
        "ztensor",
        "ztensor.store",
        "ztensor.repository",
        "ztensor.trainer",
        "ztensor.fsspec",
    ],
    "api/frameworks.md": [
        "ztensor.torch",
        "ztensor.numpy",
        "ztensor.jax",
        "ztensor.flax",
        "ztensor.tensorflow",
        "ztensor.mlx",
        "ztensor.paddle",
    ],
    "api/distributed.md": ["ztensor.distributed", "ztensor.distributed.stream"],
    "api/sync.md": ["ztensor.sync"],
    "api/z4ai.md": [
        "z4ai",
        "z4ai.integrations",
        "z4ai.safetensors",
        "z4ai.model_delta",
        "z4ai.delta",
        "z4ai.chunked",
    ],
}
TITLES = {
    "api/ztensor.md": "API reference: ztensor",
    "api/frameworks.md": "API reference: frameworks",
    "api/distributed.md": "API reference: ztensor.distributed",
    "api/sync.md": "API reference: ztensor.sync",
    "api/z4ai.md": "API reference: z4ai",
}

_Definition = ast.FunctionDef | ast.ClassDef


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages to the site."""
    for path in PAGES:
        files.append(File.generated(config, path, content=page(path)))
    return files


def page(path: str) -> str:
    """One page of the reference."""
    parts = [f"# {TITLES[path]}\n"]
    for module in PAGES[path]:
        parts.append(_module(module, path, alone=len(PAGES[path]) == 1))
    if path == "api/ztensor.md":
        parts.append(_types())
    return "\n".join(parts)


@cache
def _first_places() -> dict[tuple[str, str], tuple[str, str]]:
    """Where each definition is described: the page, and the name it has there."""
    places: dict[tuple[str, str], tuple[str, str]] = {}
    for path, modules in PAGES.items():
        for module in modules:
            for name in _public(module):
                home, definition = _found(module, name)
                if definition is not None:
                    places.setdefault((home, definition.name), (path, f"{module}.{name}"))
    return places


@cache
def _tree(module: str) -> ast.Module:
    base = PYTHON.joinpath(*module.split("."))
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return ast.parse(file.read_text())


def _public(module: str) -> list[str]:
    """The names of ``__all__``, without those that safetensors has under an underscore."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            shown = [name for name in names if not name.startswith("_")]
            return sorted(
                shown, key=lambda name: (name.endswith(("Error", "Warning")), name.lower())
            )
    return []


def _found(module: str, name: str) -> tuple[str, _Definition | None]:
    """The module in which a name is defined, and its definition if it has one."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith(
                    ("ztensor", "z4ai")
                ):
                    if (PYTHON.joinpath(*node.module.split("."), f"{alias.name}.py")).exists():
                        return f"{node.module}.{alias.name}", None
                    return _found(node.module, alias.name)
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
    return module, None


def _module(module: str, path: str, alone: bool) -> str:
    about = ast.get_docstring(_tree(module)) or ""
    parts = [] if alone else [f"## {module} {{ #{module} }}\n"]
    parts.append(_markdown(about))
    others: list[str] = []
    values: list[str] = []
    for name in _public(module):
        home, definition = _found(module, name)
        if definition is None:
            values += _value(home, name)
            continue
        there, full = _first_places()[home, definition.name]
        if full == f"{module}.{name}":
            parts.append(_entry(full, definition))
        else:
            file = "" if there == path else Path(there).name
            others.append(f"`{name}` is [`{full}`]({file}#{full})")
    if values:
        parts.append("| name | value | |\n|---|---|---|\n" + "\n".join(values) + "\n")
    if others:
        parts.append("Also here: " + ", ".join(others) + ".\n")
    return "\n".join(parts)


def _value(module: str, name: str) -> list[str]:
    """A row of a table for a name that is assigned, with the string that follows it."""
    body = _tree(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                pass
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if (
                found == name
            ):
                pass
            case _:
                continue
        about = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            about = _inline(" ".join(str(after.value.value).split()))
        shown = ast.unparse(value)
        code = f"`{shown}`".replace("|", "\\|") if len(shown) <= 60 else ""
        return [f"| `{name}` | {code} | {about} |"]
    return []


def _entry(full: str, node: _Definition, level: int = 3) -> str:
    shown = full if level == 3 else full.rpartition(".")[2]
    parts = [f"{'#' * level} {shown} {{ #{full} }}\n"]
    if isinstance(node, ast.FunctionDef):
        parts.append(_fenced(_signature(full.rpartition(".")[2], node)))
    else:
        parts.append(_fenced(_class_signature(full.rpartition(".")[2], node)))
    parts.append(_markdown(ast.get_docstring(node) or ""))
    if isinstance(node, ast.ClassDef):
        parts.append(_fields(node))
        for member in node.body:
            if (
                isinstance(member, ast.FunctionDef)
                and not member.name.startswith("_")
                and ast.get_docstring(member)
                and not any("overload" in ast.unparse(d) for d in member.decorator_list)
            ):
                parts.append(_entry(f"{full}.{member.name}", member, 4))
    return "\n".join(parts)


def _fields(node: ast.ClassDef) -> str:
    """A table of the fields of a data class or a named tuple, with the strings that follow them."""
    rows = []
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(member, ast.AnnAssign) or ast.unparse(member.target).startswith("_"):
            continue
        about = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            about = _inline(" ".join(str(after.value.value).split()))
        kind = ast.unparse(member.annotation).replace("|", "\\|")
        rows.append(f"| `{ast.unparse(member.target)}` | `{kind}` | {about} |")
    return "\n".join(["| field | type | |", "|---|---|---|", *rows]) + "\n" if rows else ""


def _class_signature(name: str, node: ast.ClassDef) -> str:
    bases = [ast.unparse(base) for base in node.bases]
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return _signature(f"class {name}", member)
    return f"class {name}({', '.join(bases)})" if bases else f"class {name}"


def _signature(name: str, node: ast.FunctionDef) -> str:
    """A function's parameters; those that it takes as ``**options`` one by one."""
    arguments = node.args
    shown: list[str] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    for argument, default in zip(positional, [*defaults, *arguments.defaults], strict=True):
        if argument.arg not in ("self", "cls"):
            shown.append(_parameter(argument, default))
    if arguments.vararg:
        shown.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs or arguments.kwarg:
        shown.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        shown.append(_parameter(argument, default))
    if arguments.kwarg:
        kind = ast.unparse(arguments.kwarg.annotation) if arguments.kwarg.annotation else ""
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", kind)
        if unpacked:
            shown += _options(unpacked[1])
        else:
            shown.append(f"**{ast.unparse(arguments.kwarg)}")
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and "class" not in name else ""
    if "property" in decorators:
        return f"{name}{returned.replace(' -> ', ': ')}"
    line = f"{name}({', '.join(shown)}){returned}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + f"){returned}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return (
        f"{text} = {ast.unparse(default)}"
        if argument.annotation
        else f"{text}={ast.unparse(default)}"
    )


@cache
def _options(kind: str) -> list[str]:
    """The options of a typed dictionary, with their defaults."""
    tree = _tree("ztensor._options")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    defaults: dict[str, Any] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.AnnAssign)
            and ast.unparse(node.target) == "DEFAULTS"
            and node.value
        ):
            defaults = ast.literal_eval(node.value)
    shown: list[str] = []
    for base in classes[kind].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            shown += _options(base.id)
    for member in classes[kind].body:
        if isinstance(member, ast.AnnAssign):
            name = ast.unparse(member.target)
            shown.append(f"{name}: {ast.unparse(member.annotation)} = {defaults[name]!r}")
    return shown


def _types() -> str:
    """The aliases that signatures name."""
    lines = ["## Types in signatures { #types }\n", "| name | is | |", "|---|---|---|"]
    body = _tree("ztensor._types").body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and node.value):
            continue
        name = ast.unparse(node.target)
        if name.startswith("_"):
            continue
        about = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            about = _inline(" ".join(str(after.value.value).split()))
        kind = ast.unparse(node.value).replace("_TorchDevice", "torch.device")
        kind = kind.replace("_TorchDType", "torch.dtype").replace("|", "\\|")
        lines.append(f"| `{name}` | `{kind}` | {about} |")
    return "\n".join(lines) + "\n"


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```\n"


def _inline(text: str) -> str:
    """The inline markup of docstrings as Markdown."""
    text = re.sub(r":(?:func|class|mod|meth|attr|data):`~?\.?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _markdown(docstring: str) -> str:
    """A docstring as Markdown: examples and indented blocks become code blocks."""
    paragraphs = re.split(r"\n{2,}", textwrap.dedent(docstring).strip())
    shown = []
    for paragraph in paragraphs:
        if paragraph.lstrip().startswith(">>>"):
            shown.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```")
        elif paragraph.startswith("    "):
            shown.append(f"```\n{textwrap.dedent(paragraph)}\n```")
        else:
            shown.append(_inline(paragraph))
    return "\n\n".join(shown) + "\n"
