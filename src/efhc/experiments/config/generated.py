"""What is written from the code: docs/settings.md, the tables of docs/node.md, efhc/__init__.pyi for type checkers.

`python -m efhc.experiments.config.generated` writes all. A test compares them with the code.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import efhc
from efhc.base.policy import Policy, family_of
from efhc.base.registry import Family
from efhc.experiments.config.experiment import Experiment, built_in_kinds
from efhc.runtime.settings import Neighbour, NodeSettings

SETTINGS = Path(efhc.__file__).parents[2] / "docs" / "settings.md"
NODE_PAGE = SETTINGS.with_name("node.md")
NODE_TABLES, END = "<!-- settings of nodes -->", "<!-- end -->"
"""What is between these lines is written."""
HOMES: dict[str, str] = vars(efhc)["_HOMES"]
STUB = Path(efhc.__file__).with_suffix(".pyi")
COMMAND = f"python -m {__name__ if __name__ != '__main__' else 'efhc.experiments.config.generated'}"


# docs/settings.md


def settings_page() -> str:
    """Return the page: every setting with its default and what it means."""
    lines = [
        "# Every setting",
        "",
        "A TOML file holds those that differ from the default; `efhc config show` prints all. This page is written by",
        f"`{COMMAND}`.",
        "",
        "Wherever a setting has a `kind`, the kind may also be your own code, `file.py:Name`: see",
        "[extending.md](extending.md).",
        "",
    ]
    lines += ["| setting | default | |", "|---|---|---|", *_rows(Experiment, ("strategies",))]
    listed: set[type[Policy]] = set()
    for title, kinds in _tables(Experiment):
        if title not in Experiment.model_fields and listed.issuperset(kinds.values()):  # such as network.topology
            continue
        listed.update(kinds.values())
        lines += ["", f"## `{title}`"]
        for kind, policy in kinds.items():
            first, *others = _paragraphs(policy.__doc__)
            lines += ["", f"**`{kind}`**: {first}"]
            for paragraph in others:
                lines += ["", paragraph]
            if own := _rows(policy):
                lines += ["", "| setting | default | |", "|---|---|---|", *own]
    return "\n".join(lines) + "\n"


def _tables(policy: type[Policy], within: str = "") -> Iterator[tuple[str, dict[str, type[Policy]]]]:
    """Yield the tables of a policy and, after each, those of its kinds, with their dotted names."""
    for name, field in policy.model_fields.items():
        if kinds := _built_in(field):
            title = f"{within}{name}" if get_origin(field.annotation) is not dict else f"{within}{name}.NAME"
            yield title, kinds
            for kind in kinds.values():
                yield from _tables(kind, f"{title}.")


def _built_in(field: FieldInfo) -> dict[str, type[Policy]]:
    family = family_of(field)
    found: dict[str, type[Policy]] = family.built_in() if family else {}
    return found


def _rows(policy: type[Policy], skip: tuple[str, ...] = ("kind",)) -> list[str]:
    return [
        f"| `{name}` | {_default(field.get_default(call_default_factory=True))} | {_one_line(field.description)} |"
        for name, field in policy.model_fields.items()
        if name not in skip
    ]


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Policy):
        return f'kind "{dict(value)["kind"]}"'
    return "none" if value is None else f"`{json.dumps(value)}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a docstring, each in one line; indented ones, which are equations, as they stand."""
    found = inspect.cleandoc(text or "").split("\n\n")
    equations = [f"```text\n{textwrap.dedent(one)}\n```" if one.startswith("    ") else None for one in found]
    return [equation or _one_line(one) for one, equation in zip(found, equations, strict=True)]


# docs/node.md


def node_page() -> str:
    """Return the page, with the tables of what a node file may hold as the code has them now."""
    before, _, rest = NODE_PAGE.read_text().partition(NODE_TABLES)
    return f"{before}{NODE_TABLES}\n{''.join(_node_tables())}{END}{rest.partition(END)[2]}"


def _node_tables() -> Iterator[str]:
    tables: dict[str, type[Policy]] = {"": NodeSettings}
    for name, field in NodeSettings.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if inspect.isclass(one)]
        tables |= {f"[[{name}]]" if one is Neighbour else f"[{name}]": one for one in inner if issubclass(one, Policy)}
    names = [name.strip("[]") for name in tables]
    for title, policy in tables.items():
        yield f"\n**`{title}`**: {_one_line(policy.__doc__)}\n" if title else ""
        yield "\n| key | default | |\n|---|---|---|\n"
        for name, field in policy.model_fields.items():
            if title or name not in names:
                default = str(field.default) if isinstance(field.default, Path) else field.default
                yield f"| `{name}` | {_default(default)} | {_one_line(field.description)} |\n"
    yield "\n"


# efhc/__init__.pyi


def stub() -> str:
    """Return the stub: the names in `efhc`, with the settings as parameters of `simulate`."""
    homes = {**HOMES, **{name: kind.__module__ for name, kind in built_in_kinds().items()}}
    own, imports = _simulate()
    del homes["simulate"]
    lines = [
        f"# Written by `{COMMAND}`.",
        "# ruff: noqa: I001",
        *sorted(
            one
            for one in imports | {"from collections.abc import Mapping, Sequence", "from typing import Any, Literal"}
            if not one.startswith("from efhc.")
        ),
        "",
        *sorted(
            {one for one in imports if one.startswith("from efhc.")}
            | {f"from {home} import {name} as {name}" for name, home in homes.items()},
        ),
        "",
        "__version__: str",
        "__all__: list[str]",
        "",
        "def simulate(",
        "    experiment: Experiment | None = None,",
        "    *,",
        *(f"    {name}: {annotation} = ...," for name, annotation in own.items()),
        *(f"    {name}: {_annotation(field)} = ...," for name, field in Experiment.model_fields.items()),
        ") -> Result:",
        *(f"    {line}".rstrip() for line in _quoted(efhc.simulate.__doc__ or "").splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f'"""{inspect.cleandoc(text)}\n"""'


def _simulate() -> tuple[dict[str, str], set[str]]:
    """Return the parameters of `simulate` besides the settings, and the imports that their types need."""
    parameters = list(inspect.signature(efhc.simulate).parameters.values())
    own = {one.name: str(one.annotation) for one in parameters[1:] if one.kind is not one.VAR_KEYWORD}
    module = inspect.getmodule(efhc.simulate)
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    homes = {
        alias.asname or alias.name: f"from {node.module} import {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    words = {word for annotation in own.values() for word in re.findall(r"[A-Za-z_]\w*", annotation)}
    built_in = {"None", "bool", "int", "float", "str", "dict", "list", "tuple", "Any", "Mapping", "Sequence", "Literal"}
    needed = words - built_in - set(HOMES)
    return own, {homes.get(word, f"from {efhc.simulate.__module__} import {word}") for word in needed}


def _annotation(field: FieldInfo) -> str:
    """Return the type of a setting as Python users may pass it: an object, a kind, a table, or one of their own."""
    family = next((one for one in field.metadata if isinstance(one, Family)), None)
    return _of_family(family) if family else _type(field.annotation)


def _of_family(family: Family) -> str:
    bases = family.base if isinstance(family.base, tuple) else (family.base,)
    return f"{' | '.join(base.__name__ for base in bases)} | str | Mapping[str, Any] | Any"


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        family = next((one for one in annotation.__metadata__ if isinstance(one, Family)), None)
        return _of_family(family) if family else _type(inner[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, inner))}]"
    if origin is tuple:  # from Python, one value may stand for a list of one
        return f"{_type(inner[0])} | Sequence[{_type(inner[0])}]"
    if origin is dict:
        return f"Mapping[{_type(inner[0])}, {_type(inner[1])}]"
    if inner:
        return " | ".join(map(_type, inner))
    return "None" if annotation is type(None) else str(annotation.__name__)


def write() -> None:
    """Write all files."""
    SETTINGS.write_text(settings_page())
    NODE_PAGE.write_text(node_page())
    STUB.write_text(stub())


if __name__ == "__main__":
    write()
