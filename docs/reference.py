"""Writes ``docs/reference/`` from the docstrings of the public names: ``make docs``.

griffe reads the sources. Only classes whose docstrings hold the options of a training are imported.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import griffe

FOLDER = Path(__file__).parent / "reference"
PACKAGE = "sparkdl_runner"


class Page(NamedTuple):
    """One page: the public names of one package, in an order that a person would read."""

    file: str
    title: str
    modules: tuple[str, ...]
    first: tuple[str, ...] = ()
    """What comes before the rest, which is in alphabetical order."""


PAGES = (
    Page(
        "runner.md",
        "sparkdl_runner",
        (PACKAGE,),
        (
            "HorovodRunner",
            "DistributedRunner",
            "TorchDistributor",
            "RunConfig",
            "World",
            "current_world",
        ),
    ),
    Page(
        "data.md",
        "sparkdl_runner.data",
        (f"{PACKAGE}.data",),
        ("make_spark_converter", "SparkDatasetConverter", "ArrowLoader"),
    ),
    Page("tracking.md", "sparkdl_runner.tracking", (f"{PACKAGE}.tracking",), ("Tracking",)),
    Page(
        "checkpoint.md",
        "sparkdl_runner.checkpoint",
        (f"{PACKAGE}.checkpoint", f"{PACKAGE}.checkpoint.dcp"),
    ),
    Page(
        "estimator.md",
        "sparkdl_runner.estimator",
        (f"{PACKAGE}.estimator",),
        ("TorchEstimator", "TorchModel"),
    ),
    Page("training.md", "sparkdl_runner.Trainer", (f"{PACKAGE}.training.loop.trainer",)),
    Page("memory.md", "sparkdl_runner.plan_memory", (f"{PACKAGE}.training.memory",)),
    Page("replicas.md", "sparkdl_runner.verify_replicas", (f"{PACKAGE}.training.replicas",)),
    Page(
        "horovod.md",
        "sparkdl_runner.horovod",
        (
            f"{PACKAGE}.horovod",
            f"{PACKAGE}.horovod.spark",
            f"{PACKAGE}.horovod.tensorflow.keras",
        ),
    ),
    Page(
        "air.md",
        "sparkdl_runner.air",
        (f"{PACKAGE}.air", f"{PACKAGE}.air.runtime", f"{PACKAGE}.air.compute"),
    ),
)


def pages() -> dict[str, str]:
    """The text of every page, by the name of its file."""
    loaded = griffe.load(PACKAGE, docstring_parser=griffe.Parser.google, resolve_aliases=False)
    written = {page.file: _page(page, loaded) for page in PAGES}
    index = ["# Reference", "", "Generated from the docstrings by `make docs`.", ""]
    for page in PAGES:
        index.append(f"## [{page.title}]({page.file})")
        index.append("")
        for name, found in _public(page, loaded):
            index.append(f"- [`{name}`]({page.file}#{_anchor(name)}): {_summary(found)}")
        index.append("")
    return {"README.md": "\n".join(index).rstrip() + "\n", **written}


def _page(page: Page, loaded: Any) -> str:
    module = _resolve(loaded, page.modules[0])
    parts = [f"# {page.title}", *_docstring(module)]
    parts += [part for name, found in _public(page, loaded) for part in _described(name, found)]
    return "\n\n".join(parts) + "\n"


def _public(page: Page, loaded: Any) -> list[tuple[str, Any]]:
    """The public names of a page, each with what griffe knows of it."""
    found = {}
    for module in page.modules:
        own = _resolve(loaded, module)
        for name in _exported(own):
            found[name] = _resolve(loaded, own.members[name].target_path)
    for place, module in enumerate(page.modules):
        own = _resolve(loaded, module)
        if place or not own.is_init_module:
            found |= {
                name: one
                for name, one in own.classes.items()
                if not (name.startswith("_") or one.is_alias)
            }
    order = [*page.first, *sorted(found.keys() - set(page.first))]
    return [(name, found[name]) for name in order]


def _exported(module: Any) -> list[str]:
    """What a package exports; it computes that list, so it has to be asked itself."""
    if not module.is_init_module:
        return []
    names = importlib.import_module(module.path).__all__
    return [name for name in names if not name.startswith("__")]


def _resolve(loaded: Any, path: str) -> Any:
    found = loaded
    for part in path.split(".")[1:]:
        found = found.members[part]
    return _resolve(loaded, found.target_path) if found.is_alias else found


def _described(name: str, found: Any) -> Iterator[str]:
    yield f"## {name}"
    yield _signature(name, found)
    yield from _docstring(found)
    if not found.is_class:
        return
    is_dataclass = "dataclass" in found.labels
    attributes = [
        one
        for one in found.attributes.values()
        if not one.name.startswith("_") and (one.docstring or is_dataclass)
    ]
    properties = [one for one in attributes if "property" in one.labels]
    fields = [one for one in attributes if one not in properties]
    if fields:
        yield _table(
            ("attribute", "type", "default", ""),
            (
                (f"`{one.name}`", _code(one.annotation), _code(one.value), _line(one))
                for one in fields
            ),
        )
    if properties:
        yield _table(
            ("property", "type", ""),
            ((f"`{one.name}`", _code(one.annotation), _line(one)) for one in properties),
        )
    for method in found.functions.values():
        own = f"{name}.{method.name}"
        if not method.name.startswith("_") and method.docstring:
            yield f"### {own}"
            yield _signature(own, method)
            yield from _docstring(method)


def _signature(name: str, found: Any) -> str:
    """The call, one argument a line where they do not fit into one."""
    if found.is_class:
        function = found.members.get("__init__")
        if function is None:
            bases = ", ".join(str(base) for base in found.bases)
            fields = _fields(found)
            call = f"class {name}({bases})" if bases else f"class {name}"
            return f"```python\n{_call(f'class {name}', fields) if fields else call}\n```"
        opening, returned = f"class {name}", ""
    elif found.is_function:
        function = found
        opening, returned = f"def {name}", f" -> {found.returns}" if found.returns else ""
    else:
        return f"```python\n{name}: {found.annotation or found.value}\n```"
    arguments = []
    starred = False
    for one in function.parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            arguments.append("*")
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(one.kind, "")
        starred = starred or stars == "*"
        hint = f": {one.annotation}" if one.annotation else ""
        has_default = one.default is not None and not stars
        default = f" = {one.default}" if has_default else ""
        arguments.append(f"{stars}{one.name}{hint}{default}")
    return f"```python\n{_call(opening, arguments, returned)}\n```"


def _fields(found: Any) -> list[str]:
    """The arguments of a dataclass."""
    if "dataclass" not in found.labels:
        return []
    fields = [
        f"{one.name}: {one.annotation}" + (f" = {one.value}" if one.value else "")
        for one in found.attributes.values()
        if one.annotation and "property" not in one.labels
    ]
    return ["*", *fields]


def _call(opening: str, arguments: list[str], returned: str = "") -> str:
    line = f"{opening}({', '.join(arguments)}){returned}"
    if len(line) <= 88:
        return line
    return f"{opening}(\n" + "".join(f"    {one},\n" for one in arguments) + f"){returned}"


def _docstring(found: Any) -> Iterator[str]:
    """The sections of a docstring; of a class, those of its constructor as well."""
    docstring = found.docstring
    if found.is_class and any(str(one.value) == "documented" for one in found.decorators):
        # The options of a training are added where they are described, and so not in its source.
        running = getattr(importlib.import_module(found.module.path), found.name)
        docstring = griffe.Docstring(inspect.getdoc(running) or "", parent=found)
    if docstring is not None:
        for section in docstring.parse("google"):
            yield from _section(section)
    if found.is_class and (init := found.members.get("__init__")) and init.docstring:
        for section in init.docstring.parse("google"):
            if section.kind is not griffe.DocstringSectionKind.text:
                yield from _section(section)


def _section(section: Any) -> Iterator[str]:
    kinds = griffe.DocstringSectionKind
    if section.kind is kinds.text:
        yield _markdown(section.value)
    elif section.kind is kinds.parameters:
        yield _table(
            ("argument", ""), ((f"`{one.name}`", _cell(one.description)) for one in section.value)
        )
    elif section.kind is kinds.attributes:
        yield _table(
            ("attribute", ""), ((f"`{one.name}`", _cell(one.description)) for one in section.value)
        )
    elif section.kind is kinds.raises:
        yield _table(
            ("raises", "when"),
            ((_code(one.annotation), _cell(one.description)) for one in section.value),
        )
    elif section.kind in (kinds.returns, kinds.yields):
        yield "Returns: " + " ".join(_markdown(one.description) for one in section.value)
    elif section.kind is kinds.admonition and section.value.kind == "example":
        code = re.sub(r"\s*# doctest:.*", "", section.value.description)
        yield f"Example:\n\n```text\n{code}\n```"
    else:
        raise ValueError(f"docs/reference.py has no words for a section of kind {section.kind}.")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: Any) -> str:
    return "" if text is None else f"`{text}`".replace("|", "\\|")


def _line(found: Any) -> str:
    return _cell(found.docstring.value) if found.docstring else ""


def _cell(text: str) -> str:
    return " ".join(_markdown(text).split()).replace("|", "\\|")


def _summary(found: Any) -> str:
    return _cell(found.docstring.value.partition("\n\n")[0])


def _markdown(text: str) -> str:
    """reStructuredText's inline marks as Markdown's."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    # A block of code after two colons.
    text = re.sub(r"::\n\n((?:    .*\n?|\n)+)", _fenced, text)
    return text.strip()


def _fenced(match: re.Match[str]) -> str:
    lines = match[1].rstrip().splitlines()
    code = "\n".join(line.removeprefix("    ") for line in lines)
    return f":\n\n```text\n{code}\n```\n\n"


def _anchor(heading: str) -> str:
    """The anchor that is made of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main() -> None:
    """Writes the pages, and removes those that are no more."""
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in written:
            old.unlink()
    for name, text in written.items():
        page = FOLDER / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


if __name__ == "__main__":
    main()
