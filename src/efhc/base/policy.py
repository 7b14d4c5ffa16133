"""A policy is one small immutable choice: a table of the config file and an object of the Python API at once."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

LONGEST = 1000
"""The largest number of characters that a repr shows of one value."""


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
        from efhc.base.own_parts import packed

        state = super().__getstate__()
        return state | {"__dict__": packed(state["__dict__"])}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        from efhc.base.own_parts import unpacked

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


class Kinds:
    """Metadata of a field: what its value may be, by kind. `registry.Family` is the only subclass."""

    def kinds(self) -> dict[str, type[Policy]]:
        """Return the policies by their kind."""
        raise NotImplementedError


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
    """Return the family of a field, or of the values of its table; None for a plain value."""
    attached = [*field.metadata, *_metadata(field.annotation)]
    return next((one for one in attached if isinstance(one, Kinds)), None)


def descriptions(policy: type[Policy]) -> dict[str, str]:
    """Return the docstring below each field of a policy, by the name of the field.

    They are read from the source when somebody asks, for a document or a schema. pydantic would read those of all
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
