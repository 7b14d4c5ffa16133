"""A policy is one small immutable choice: a table of the config file and an object of the Python API at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo


class Policy(BaseModel):
    """Base of every choice a user makes. Unknown keys, wrong types and NaN are refused when it is made."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _without_numpy(cls, given: Any) -> Any:
        return {name: _plain(value) for name, value in given.items()} if isinstance(given, dict) else given

    def __getstate__(self) -> dict[Any, Any]:
        from efhc.base.own_parts import packed

        state = super().__getstate__()
        return state | {"__dict__": packed(state["__dict__"])}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        from efhc.base.own_parts import unpacked

        super().__setstate__(state | {"__dict__": unpacked(state["__dict__"])})


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
