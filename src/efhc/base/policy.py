"""A policy is one small immutable choice: a table of the config file and an object of the Python API at once."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidatorFunctionWrapHandler, WrapValidator


class Policy(BaseModel):
    """Base of every choice a user makes. Unknown keys, wrong types and NaN are refused when it is made."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def default_kind(kind: str) -> BeforeValidator:
    """For a union of policies: a table that does not say its `kind` is of this one, and a bare word is a kind."""

    def add_kind(table: Any) -> Any:
        return {"kind": kind, **table} if isinstance(table, dict) else _named(table)

    return BeforeValidator(add_kind)


def _named(table: Any) -> Any:
    return {"kind": table} if isinstance(table, str) else table


by_name = BeforeValidator(_named)
"""For a union of policies: a bare word is a kind."""


def or_your_own(method: str) -> WrapValidator:
    """For a union of policies: from Python, any object with this method will do as well."""

    def pass_objects(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        is_object = not isinstance(value, dict | list | tuple | str | bytes | type)
        return value if is_object and callable(getattr(value, method, None)) else validate(value)

    return WrapValidator(pass_objects)
