"""A policy is one small immutable choice: a table of the config file and an object of the Python API at once.

Its kind is the name by which configs choose it. Installed packages add kinds by entry points of the group `efhc.kinds`;
each is a class.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from itertools import islice, pairwise
from typing import Any, NamedTuple, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from efhc.base.errors import InputError, Unusable, did_you_mean

LONGEST = 1000
"""The largest number of characters that a repr shows of one value."""

ENTRY_POINTS = "efhc.kinds"


class Policy(BaseModel):
    """Base of every choice a user makes. Unknown keys, wrong types and NaN are refused when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_numpy(cls, given: Any) -> Any:
        return {name: _plain(value) for name, value in given.items()} if isinstance(given, dict) else given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        table = handler(schema)
        properties = handler.resolve_ref_schema(table)["properties"]
        for name, text in descriptions(cls).items():
            properties[name]["description"] = text
        return table

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield the settings that differ from their defaults, long ones in short."""
        for name, field in type(self).model_fields.items():
            value, default = getattr(self, name), field.get_default(call_default_factory=True)
            if not (value is default or (type(value) is type(default) and value == default)):
                yield name, _InShort(value)

    def __getstate__(self) -> dict[Any, Any]:
        from efhc.base.own_code import packed

        state = super().__getstate__()
        return state | {"__dict__": packed(state["__dict__"])}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        from efhc.base.own_code import unpacked

        super().__setstate__(state | {"__dict__": unpacked(state["__dict__"])})


class _InShort:
    """A value whose repr has the first entries of a long list or table only."""

    MOST = 12

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if type(value) not in (list, tuple, dict) or not value:
            text = repr(value)
            return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
        if isinstance(value, dict):
            entries = [f"{key!r}: {_InShort(inner)}" for key, inner in islice(value.items(), self.MOST)]
        else:
            entries = [repr(_InShort(inner)) for inner in value[: self.MOST]]
        entries += [f"... {len(value) - self.MOST} more"] if len(value) > self.MOST else []
        inside = ", ".join(entries)
        if isinstance(value, dict):
            return f"{{{inside}}}"
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(entries) == 1)})"


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's, also within lists and tables."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _metadata(annotation: Any) -> Iterator[Any]:
    """Yield the metadata that is attached to a type or to a type within it."""
    yield from getattr(annotation, "__metadata__", ())
    for inner in get_args(annotation):
        yield from _metadata(inner)


class Bounds(NamedTuple):
    """The range that a number of a policy must stay in; None where it has no end."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None


def bounds_of(field: FieldInfo) -> Bounds:
    """Return the bounds that a field declares, also as `Annotated[int, Field(ge=1)] | None`."""
    attached = [*field.metadata, *_metadata(field.annotation)]
    single = [one for each in attached for one in (each.metadata if isinstance(each, FieldInfo) else [each])]
    found = {name: getattr(one, name) for one in single for name in Bounds._fields if hasattr(one, name)}
    return Bounds(**found)


def kinds_of(field: FieldInfo) -> dict[str, type[Policy]]:
    """Return the policies that a field accepts, by their kind; none for a plain value."""
    family = family_of(field)
    return family.kinds() if family else {}


def family_of(field: FieldInfo) -> Any:
    """Return the `registry.Family` of a field, or of the values of its table; None for a plain value."""
    attached = [*field.metadata, *_metadata(field.annotation)]
    return next((one for one in attached if hasattr(one, "kinds")), None)


def descriptions(policy: type[Policy]) -> dict[str, str]:
    """Return the docstring below each field of a policy, by the name of the field.

    They are read from the source only when a document or a schema needs them. pydantic would read those of all
    policies whenever they are imported, which takes longer than all else about them.
    """
    found: dict[str, str] = {}
    for one in reversed(policy.__mro__):
        if issubclass(one, Policy):
            found |= _docstrings_of(one)
    given = {name: field.description for name, field in policy.model_fields.items()}
    return {name: text for name in given if (text := found.get(name) or given[name])}


def _docstrings_of(policy: type[Policy]) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself declares; none if there is no source."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(policy))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    lines = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        declared.target.id: inspect.cleandoc(text.value.value)
        for declared, text in pairwise(lines)
        if isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


# Kinds of efhc and of installed packages


def kind_of(policy: type[Policy]) -> str | None:
    """Return the kind by which configs name a class, or None for a class without one."""
    field = policy.model_fields.get("kind")
    return field.default if field and isinstance(field.default, str) else None


def is_registered(policy: Policy) -> bool:
    """Return whether a policy is of a kind that comes with efhc or with an installed package, not of the user's own."""
    return type(policy).__module__.startswith("efhc.") or type(policy) in installed_kinds()


@functools.cache
def installed_kinds() -> tuple[type[Policy], ...]:
    """Return the classes of all entry points. One that cannot be used is named in a warning."""
    found: list[type[Policy]] = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            policy = point.load()
        except Exception as error:  # a package that is broken must not break runs that do not need it
            warnings.warn(f"{ENTRY_POINTS}: {point.value} cannot be loaded ({error})", stacklevel=2)
            continue
        if isinstance(policy, type) and issubclass(policy, Policy) and kind_of(policy):
            found.append(policy)
        else:
            warnings.warn(f"{ENTRY_POINTS}: {point.value} is not a Policy with a kind", stacklevel=2)
    return tuple(found)


# Problems that pydantic finds, in the words of config files


def as_input_error(error: ValidationError, whole: type[Policy], tables: Mapping[str, Any] | None = None) -> InputError:
    """Return the first problem that pydantic found in a `whole`: the field, what was given, what is allowed.

    `tables` are what was validated. Names in them are suggested for an entry that has no kind.
    """
    problems = error.errors(include_url=False)
    # An entry that is wrong is also missing from its list: that is not a problem of its own.
    problems = [
        p for p in problems if p["type"] != "too_short" or all(len(q["loc"]) <= len(p["loc"]) for q in problems)
    ]
    field, policy = _place(problems[0]["loc"], whole)
    same_field = [p for p in problems if _place(p["loc"], whole)[0] == field]
    fields = {_place(p["loc"], whole)[0] for p in problems}
    # A list with wrong entries is also none of the other things that its setting may be: no problem of its own.
    more = sum(not any(other.startswith(f"{one}.") for other in fields) for one in fields) - 1
    suffix = f". There {'are' if more > 1 else 'is'} {more} more problem{'s' if more > 1 else ''}" if more else ""
    kind, context = problems[0]["type"], problems[0].get("ctx", {})
    given = _shown(problems[0]["input"])
    if isinstance(inner := context.get("error"), Unusable):
        place = ".".join(filter(None, [field, inner.field]))
        return InputError(place, inner.given, inner.allowed + suffix, inner.problem)
    if kind == "extra_forbidden":
        known = list(policy.model_fields)
        word = str(problems[0]["loc"][-1])
        known_keys = ", ".join(known) + suffix
        problem = f"there is no such key{did_you_mean(word, known)}. Use {known_keys}."
        return InputError(field, "an unknown key", known_keys, problem)
    if kind == "missing":
        return InputError(field, "nothing", "a value", f"this key is required{suffix}.")
    if kind == "union_tag_invalid":
        known = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        word = str(context["tag"])
        if word.endswith(".py"):
            return InputError(f"{field}.kind", f"'{word}'", f"'{word}:NAME', with the name of a class in that file")
        return InputError(f"{field}.kind", f"'{word}'{did_you_mean(word, known)}", ", ".join(known) + suffix)
    setting, _, entry = field.partition(".")
    of = policy.model_fields.get(field.rpartition(".")[2]) or policy.model_fields.get(setting)
    kinds = kinds_of(of) if of else {}
    allowed = " or ".join(_allowed(p["msg"]) for p in same_field)
    if kind == "union_tag_not_found":
        siblings = (tables or {}).get(setting)
        given += did_you_mean(entry, [name for name in siblings if name != entry]) if isinstance(siblings, dict) else ""
        allowed = f"a table with a kind: {', '.join(kinds)}"
    elif kind == "model_attributes_type" and (example := _example(field, problems[0]["input"], kinds)):
        allowed = f"a table with a kind, such as {example}"
    return InputError(field, given, allowed + suffix)


def _example(field: str, value: Any, kinds: Mapping[str, type[Policy]]) -> str | None:
    """Return how to set `value`, a number, as the only parameter of a kind; None if no kind accepts it so."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    for kind, policy in kinds.items():
        names = [name for name in policy.model_fields if name != "kind"]
        if len(names) == 1 and policy.model_fields[names[0]].annotation is float:
            try:
                policy.model_validate({names[0]: value})
            except ValidationError:
                continue
            return f"{field}.kind={kind} {field}.{names[0]}={value}"
    return None


_IN_TOML_WORDS = {
    "a valid tuple": "a list in brackets",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid dictionary": "a table",
    "an instance of Path": "a path",
    "Input is not a valid path for <class 'pathlib.Path'>": "a path",
    "a valid number, unable to parse string as a number": "a number",
    "a valid dictionary or object to extract fields from": "a table with a kind, or an object made from a class",
}


def _allowed(message: str) -> str:
    if least := re.match(r"(?:Tuple|Dictionary) should have at least (\d+) item", message):
        return f"at least {least[1]} entry"
    if table := re.match(r"Input should be a valid dictionary or instance of (\w+)$", message):
        return f"a table with the settings of {table[1]}"
    for prefix in ("Input should be ", "Value error, "):
        message = message.removeprefix(prefix)
    if message.startswith(("greater than", "less than")):
        return f"a number {message}"
    return _IN_TOML_WORDS.get(message, message[0].lower() + message[1:])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str | int | float | list | tuple | dict) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _table_of(field: FieldInfo) -> type[Policy] | None:
    """Return the policy that a field holds, if it is a table without kinds."""
    inner = [field.annotation, *get_args(field.annotation)]
    return next((one for one in inner if isinstance(one, type) and issubclass(one, Policy)), None)


def _dict_in(annotation: Any) -> Any:
    """Return the dict that a field's annotation is, perhaps with other types beside it; None if there is none."""
    return next((one for one in (annotation, *get_args(annotation)) if get_origin(one) is dict), None)


def _place(location: tuple[int | str, ...], whole: type[Policy]) -> tuple[str, type[Policy]]:
    """Return the dotted name of a pydantic location, without union members, and the policy that it ends in."""
    policy = whole
    members: dict[str, type[Policy]] = {}
    key_next, name_next, keys = True, False, frozenset[str]()
    names: list[str] = []
    for part in location:
        if key_next and isinstance(part, int):  # an entry of a list of tables
            names.append(str(part))
        elif key_next:
            names.append(str(part))
            field = policy.model_fields.get(str(part))
            members = kinds_of(field) if field else {}
            of_names = _dict_in(field.annotation) if field else None
            name_next = of_names is not None
            table = _table_of(field) if field and not members else None
            policy, key_next = (table, True) if table else (policy, False)
        elif name_next or isinstance(part, int):
            names.append(str(part))
            keys = frozenset(getattr(get_args(of_names)[1], "__annotations__", ())) if name_next else keys
            name_next = False
        elif part in keys:  # of a table in a table
            names.append(str(part))
            keys = frozenset()
        elif part in members:
            policy, key_next = members[str(part)], True
    return ".".join(names), policy
