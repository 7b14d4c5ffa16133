"""The settings of an experiment as parameters of a function: for `help`, for completion in notebooks, for editors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic.fields import FieldInfo

from efhc.base.registry import Family
from efhc.experiments.config.experiment import Experiment

F = TypeVar("F", bound=Callable[..., Any])


def shows_settings(function: F) -> F:
    """Give a function that takes `**fields` of `Experiment` a signature that names each, with its type and default."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    settings = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=type_words(field, policy_words),
            default=field.get_default(call_default_factory=True),
        )
        for name, field in Experiment.model_fields.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *settings])  # type: ignore[attr-defined]
    return function


def type_words(field: FieldInfo, of_family: Callable[[Family], str]) -> str:
    """Return the type of a setting as Python users may pass it; `of_family` returns that of a choice of kinds."""
    family = next((one for one in field.metadata if isinstance(one, Family)), None)
    return of_family(family) if family else _type(field.annotation, of_family)


def policy_words(family: Family) -> str:
    """Return the base classes of a family, and that a kind may be given by its name or as a table."""
    return f"{' | '.join(base.__name__ for base in family.bases)} | str | Mapping[str, Any]"


def _type(annotation: Any, of_family: Callable[[Family], str]) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        family = next((one for one in annotation.__metadata__ if isinstance(one, Family)), None)
        return of_family(family) if family else _type(inner[0], of_family)
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, inner))}]"
    words = [_type(one, of_family) for one in inner if one is not ...]
    if origin is tuple:  # from Python, one value may stand for a list of one
        return f"{words[0]} | Sequence[{words[0]}]"
    if origin is dict:
        return f"Mapping[{words[0]}, {words[1]}]"
    if inner:
        return " | ".join(words)
    return "None" if annotation is type(None) else str(annotation.__name__)
