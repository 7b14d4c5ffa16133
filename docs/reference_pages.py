"""What is written from the code: docs/settings.md, docs/api.md, docs/kinds.md, the tables of docs/node.md, and
efhc/__init__.pyi for type checkers.

`python docs/reference_pages.py` writes all. A test compares them with the code.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import efhc
from efhc.base.policy import Policy, descriptions, family_of
from efhc.base.registry import Family
from efhc.experiments.config.experiment import Experiment, built_in_kinds, policy_words, type_words
from efhc.runtime.node_settings import Neighbour, NodeSettings, RecordingSettings

SETTINGS = Path(efhc.__file__).parents[2] / "docs" / "settings.md"
API_PAGE, KINDS_PAGE = SETTINGS.with_name("api.md"), SETTINGS.with_name("kinds.md")
NODE_PAGE = SETTINGS.with_name("node.md")
NODE_TABLES, END = "<!-- settings of nodes -->", "<!-- end -->"
"""What is between these lines is written."""
DESCRIBED = {
    "data": "data.md#data-sets",
    "partition": "data.md#which-device-holds-what",
    "strategies.NAME": "strategies.md#which-one-to-choose",
}
"""Where the kinds of these settings are described. For all others, docs/settings.md has the first line of each kind."""
HOMES: dict[str, str] = vars(efhc)["_HOMES"]
STUB = Path(efhc.__file__).with_suffix(".pyi")
OF_THE_STUB = {
    "from collections.abc import Callable, Mapping, Sequence",
    "from typing import Any, Literal, Protocol",
    "from numpy.typing import NDArray",
}
COMMAND = "python docs/reference_pages.py"
fields_of = functools.cache(descriptions)  # each call of `descriptions` parses the source


# docs/settings.md


def settings_page() -> str:
    """Return the page: every kind with its settings, their defaults and what they mean."""
    lines = [
        "# Every setting",
        "",
        "`name = value` is a setting with its default, and `efhc config show` prints all. Settings that several kinds",
        "share are listed before the kinds. `efhc config schema` has the whole descriptions, [Kinds](kinds.md) the",
        "equations, papers and Python classes. A `kind` may also be [your own code](extending.md), `file.py:Name`.",
        f"`{COMMAND}` writes this page.",
        "",
    ]
    lines += [_setting(Experiment, name) for name in Experiment.model_fields if name != "strategies"]
    listed: dict[type[Policy], str] = {}
    for title, kinds in _tables(Experiment):
        if not set(kinds.values()) <= set(listed):
            elsewhere = DESCRIBED.get(title)
            link = [f"[What each kind is]({elsewhere}).", ""] if elsewhere else []
            lines += ["", f"## `{title}`", "", *link, *_kinds(kinds, described=bool(elsewhere))]
        elif title in Experiment.model_fields:
            lines += ["", f"## `{title}`", "", f"The kinds of `{listed[next(iter(kinds.values()))]}`."]
        listed |= {policy: title for policy in kinds.values() if policy not in listed}
    return "\n".join(lines) + "\n"


def _kinds(kinds: dict[str, type[Policy]], *, described: bool) -> Iterator[str]:
    """Yield the settings that several kinds share, then every kind with those of its own.

    Of kinds that are `described` elsewhere, those without settings of their own are named in one line. A setting that
    the description of its kind names needs no line of its own.
    """
    holders: dict[str, list[str]] = {}
    for kind, policy in kinds.items():
        for name in (one for one in policy.model_fields if one != "kind"):
            holders.setdefault(_setting(policy, name), []).append(kind)
    shared = {line: found for line, found in holders.items() if len(found) > 1}
    for line, found in shared.items():
        whose = "all kinds" if len(found) == len(kinds) else ", ".join(f"`{kind}`" for kind in found)
        name, _, text = line.removeprefix("- ").partition(": ")
        yield f"- {name} ({whose}): {text}"
    yield from [""] if shared else []
    bare = []
    for kind, policy in kinds.items():
        title = "" if described else _paragraphs(policy.__doc__)[0]
        own = [name for name in policy.model_fields if name != "kind" and _setting(policy, name) not in shared]
        if described and not own:
            bare.append(f"`{kind}`")
            continue
        named = [name for name in own if _is_clear(policy, name, title)]
        beside = f" ({', '.join(_name(policy, name).replace(' (required)', ', required') for name in named)})"
        beside = beside if named else ""
        yield f"- **`{kind}`**{beside}" + (f": {title}" if title else "")
        yield from (f"    {_setting(policy, name)}" for name in own if name not in named)
    if bare:
        yield f"- No settings of their own: {', '.join(bare)}."


def _is_clear(policy: type[Policy], name: str, title: str) -> bool:
    """Return whether the description of a kind says what a setting is: a number in its formula, or its file."""
    default = policy.model_fields[name].get_default(call_default_factory=True)
    is_number = default is PydanticUndefined or type(default) in (int, float)
    return (is_number and bool(re.search(rf"\b{name}\b", title))) or _meaning(policy, name) == "The file."


def _setting(policy: type[Policy], name: str) -> str:
    """Return the line of a setting: its name, its default as in a config file, and what it means."""
    return f"- {_name(policy, name)}: {_meaning(policy, name)}"


def _name(policy: type[Policy], name: str) -> str:
    """Return a setting with its default, as in a config file."""
    default = policy.model_fields[name].get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return f"`{name}` (required)"
    if default is None:
        return f"`{name}`"
    if isinstance(default, Policy):
        value: object = dict(default)["kind"] if "kind" in type(default).model_fields else dict(default)
        return f"`{name} = {json.dumps(value)}`"
    return f"`{name} = {json.dumps(default)}`"


def _meaning(policy: type[Policy], name: str) -> str:
    return _in_short(_one_line(fields_of(policy).get(name)))


def _in_short(description: str) -> str:
    """Return the first sentence of a description, and the one that states the default."""
    first, *others = re.split(r"(?<=[.)])(?<!\.\.\.) (?=[A-Z])", description)
    return " ".join([first, *(one for one in others if one.startswith("Default"))])


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


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Policy):
        fields = dict(value)
        return f'kind "{fields["kind"]}"' if "kind" in fields else f"`{json.dumps(fields)}`"
    return "none" if value is None else f"`{json.dumps(value)}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a docstring, each in one line; indented ones, which are equations, as they stand."""
    found = inspect.cleandoc(text or "").split("\n\n")
    equations = [f"```text\n{textwrap.dedent(one)}\n```" if one.startswith("    ") else None for one in found]
    return [equation or _one_line(one) for one, equation in zip(found, equations, strict=True)]


# docs/api.md and docs/kinds.md, whose lines `::: NAME` the site replaces by docstrings


def api_page() -> str:
    """Return the page of the names in `efhc` that are not kinds."""
    first = ["simulate", "load_experiment", "Experiment", "Result", "Dataset", "EfhcError", "InputError"]
    others = {name: getattr(efhc, name) for name in HOMES if name not in first}
    bases = [name for name, value in others.items() if inspect.isclass(value) and issubclass(value, Policy)]
    lines = [
        "# Python API",
        "",
        "Everything public is a name of `efhc`. The kinds of each setting are on the page [Kinds](kinds.md).",
        f"`{COMMAND}` writes both pages.",
    ]
    sections = {
        "Run and read": first,
        "Base classes for kinds of your own": bases,
        "What their methods take and return": [name for name in others if name not in bases],
    }
    for title, names in sections.items():
        lines += ["", f"## {title}", *(line for name in names for line in ("", f"::: efhc.{name}"))]
    return "\n".join(lines) + "\n"


def kinds_page() -> str:
    """Return the page of all built-in kinds, by the setting that takes them."""
    lines = [
        "# Kinds",
        "",
        "The classes behind every `kind` of a config file, with their equations. [Every setting](settings.md) lists",
        "what each accepts in TOML.",
    ]
    listed: set[type[Policy]] = set()
    for title, kinds in _tables(Experiment):
        new = [policy for policy in kinds.values() if policy not in listed]
        listed.update(new)
        lines += ["", f"## `{title}`"] if new else []
        lines += [line for policy in new for line in ("", f"::: efhc.{policy.__name__}")]
    return "\n".join(lines) + "\n"


# docs/node.md


def node_page() -> str:
    """Return the page, with the tables of what a node file may hold as the code has them now."""
    before, _, rest = NODE_PAGE.read_text().partition(NODE_TABLES)
    return f"{before}{NODE_TABLES}\n{''.join(_node_tables())}{END}{rest.partition(END)[2]}"


def _node_tables() -> Iterator[str]:
    """Yield the tables of a node file, except the one that `efhc launch` writes for its own use."""
    tables: dict[str, type[Policy]] = {"": NodeSettings}
    for name, field in NodeSettings.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if inspect.isclass(one)]
        tables |= {f"[[{name}]]" if one is Neighbour else f"[{name}]": one for one in inner if issubclass(one, Policy)}
    names = [name.strip("[]") for name in tables]
    for title, policy in tables.items():
        if policy is RecordingSettings:
            continue
        yield f"\n**`{title}`**: {_one_line(policy.__doc__)}\n" if title else ""
        yield "\n| key | default | |\n|---|---|---|\n"
        told = fields_of(policy)
        for name, field in policy.model_fields.items():
            if title or name not in names:
                default = str(field.default) if isinstance(field.default, Path) else field.default
                yield f"| `{name}` | {_default(default)} | {_one_line(told.get(name))} |\n"
    yield "\n"


# efhc/__init__.pyi


def stub() -> str:
    """Return the stub: the names in `efhc`, with the settings as parameters of `simulate`."""
    homes = {**HOMES, **{name: kind.__module__ for name, kind in built_in_kinds().items()}}
    own, imports = _simulate()
    bases = {base for family in _families() for base in family.bases if base.__name__ not in homes}
    imports |= {f"from {base.__module__} import {base.__name__}" for base in bases}
    del homes["simulate"]
    lines = [
        f"# Written by `{COMMAND}`.",
        "# ruff: noqa: E501, I001",
        "# fmt: off",
        *sorted(
            one
            for one in (imports - {"from collections.abc import Callable"}) | OF_THE_STUB
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
        *_protocols(),
        "def simulate(",
        "    experiment: Experiment | None = None,",
        "    *,",
        *(f"    {name}: {annotation} = ...," for name, annotation in own.items()),
        *(
            f"    {name}: {type_words(field.annotation, field.metadata, _family_words)} = ...,"
            for name, field in Experiment.model_fields.items()
        ),
        ") -> Result:",
        *(f"    {line}".rstrip() for line in _quoted(_described(efhc.simulate.__doc__ or "")).splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f'"""{inspect.cleandoc(text)}\n"""'


def _described(text: str) -> str:
    """Return the docstring of `simulate` with every setting in place of **fields: editors show it beside the cursor."""
    told = fields_of(Experiment)
    settings = "".join(f"{name}\n    {_one_line(told[name])}\n" for name in Experiment.model_fields)
    return re.sub(r"\*\*fields\n.*?\n(?=\n)", settings, inspect.cleandoc(text), flags=re.DOTALL)


def _simulate() -> tuple[dict[str, str], set[str]]:
    """Return the parameters of `simulate` besides the settings, and the imports that their types need."""
    parameters = list(inspect.signature(efhc.simulate).parameters.values())
    own = {one.name: str(one.annotation) for one in parameters[1:] if one.name not in Experiment.model_fields}
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


def _families() -> Iterator[Family]:
    """Yield the families of the settings of an experiment."""
    yield from filter(None, map(family_of, Experiment.model_fields.values()))


def _family_words(family: Family) -> str:
    """Return what one may pass as a choice of kinds: an object, the name of a kind, a table, an object of one's own."""
    kinds = f"Literal[{', '.join(map(json.dumps, family.built_in()))}]"
    own = [_protocol_name(method) for method in family.methods]
    return " | ".join([policy_words(family), kinds, *own, *family.python_types])


def _protocol_name(method: str) -> str:
    return "Callable[..., Any]" if method == "__call__" else f"_Has{method.title().replace('_', '')}"


def _protocols() -> Iterator[str]:
    """Yield a protocol for each method by which an object of one's own becomes a part of an experiment."""
    for method in sorted({"edges", *(method for family in _families() for method in family.methods)} - {"__call__"}):
        yield f"class {_protocol_name(method)}(Protocol):"
        yield "    @property"
        yield f"    def {method}(self) -> Any: ..."
        yield ""


def write() -> None:
    """Write all files."""
    SETTINGS.write_text(settings_page())
    API_PAGE.write_text(api_page())
    KINDS_PAGE.write_text(kinds_page())
    NODE_PAGE.write_text(node_page())
    STUB.write_text(stub())


if __name__ == "__main__":
    write()
