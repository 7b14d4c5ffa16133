"""Parts of an experiment that are the user's own code: made from a reference and parameters, and written as such.

A part is an object of the user's own class, or a function. It can be written to a config, and sent to another process,
if it can be named: by the reference it was made from, or by the file of its class if its state can be dumped.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import inspect
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import ValidationError

from efhc.base.errors import EfhcError, InputError, Unusable, did_you_mean
from efhc.base.inputs import InputContent, absolute, read_input
from efhc.base.installed import is_registered
from efhc.base.own_code import content_of, in_one_line, load
from efhc.base.policy import Policy
from efhc.base.problems import as_input_error

WHAT_TO_DO = (
    "put the class or function into a file, and name it file.py:Name; a class with parameters is a part of efhc "
    "(efhc.Strategy, ...) or a dataclass"
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """What makes a part again: `reference` called with `parameters`."""

    reference: str
    parameters: Mapping[str, Any]
    content: InputContent | None
    """The content of the reference's file that the part was made from; None for "package.module:Name"."""
    methods: tuple[str, ...] = ()
    """Of which the part has one."""
    is_called: bool = True
    """Whether the part is what the reference returns, and not what it names."""


_origins: dict[int, Origin] = {}
"""The origins of the objects that references have made, by the object's id."""
_kept_alive: list[Any] = []
"""Objects that cannot tell when they are gone."""


def _remember(part: Any, origin: Origin) -> None:
    if id(part) not in _origins:
        try:
            weakref.finalize(part, _origins.pop, id(part), None)
        except TypeError:
            _kept_alive.append(part)
    _origins[id(part)] = origin


# From a reference


def make_part(
    reference: str,
    parameters: Mapping[str, Any],
    methods: tuple[str, ...],
    context: Any = None,
    content: InputContent | None = None,
) -> Any:
    """The part that `reference` and its parameters make; it has one of `methods`.

    A class is called with the parameters as keyword arguments; one that is a `Policy` checks them as built-in kinds
    do. A function returns the part, except where the part itself is a function: then the parameters are added to it.
    Anything else is the part as it is. Raises `Unusable`.
    """
    try:
        found, content = load(reference, "kind", content)
    except InputError as error:
        raise Unusable(error.field, error.given, error.allowed) from error
    is_class, is_schedule = isinstance(found, type), methods == ("__call__",)
    wanted = f"something with the method {' or '.join(methods)}"
    if is_class and methods and not any(method in vars(base) for base in found.__mro__ for method in methods):
        raise Unusable("kind", f"{reference}, a class without that method", wanted)
    if is_class:
        part = _from_class(found, reference, parameters, context)
    elif _has_any(found, methods) and not parameters:
        part = found
    elif callable(found) and is_schedule:
        part = functools.partial(found, **_fitting(found, reference, parameters, leading=1))
    elif callable(found):
        part = _called(found, reference, parameters)
    else:
        part = found
    if methods and not _has_any(part, methods):
        raise Unusable("kind", f"{reference}, which gives a {type(part).__name__} without that method", wanted)
    if parameters and part is found:
        name = next(iter(parameters))
        raise Unusable(name, f"a parameter of {reference}, which is an object", "no parameters")
    _remember(part, Origin(reference, dict(parameters), content, methods, is_called=part is not found))
    return part


def _has_any(part: Any, methods: tuple[str, ...]) -> bool:
    return any(callable(getattr(part, method, None)) for method in methods)


def _from_class(found: type, reference: str, parameters: Mapping[str, Any], context: Any) -> Any:
    if issubclass(found, Policy):
        try:
            return found.model_validate(dict(parameters), context=context)
        except ValidationError as error:
            problem = as_input_error(error, found)
            raise Unusable(problem.field, problem.given, problem.allowed) from None
    return _called(found, reference, parameters)


def _called(found: Any, reference: str, parameters: Mapping[str, Any]) -> Any:
    fitting = _fitting(found, reference, parameters)
    try:
        return found(**fitting)
    except EfhcError:
        raise
    except Exception as error:
        raise Unusable("kind", f"{reference} ({in_one_line(error)})", "parameters that it accepts") from error


def _fitting(found: Any, reference: str, parameters: Mapping[str, Any], leading: int = 0) -> dict[str, Any]:
    """The parameters, if the signature has them; `leading` positional arguments come from elsewhere."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # code that is not Python has none
        return dict(parameters)
    known = list(signature.parameters)[leading:]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    if not takes_any and (unknown := [name for name in parameters if name not in known]):
        allowed = ", ".join(known) or "no parameters"
        raise Unusable(unknown[0], f"an unknown parameter of {reference}{did_you_mean(unknown[0], known)}", allowed)
    try:
        signature.bind(*[None] * leading, **parameters)
    except TypeError as error:
        raise Unusable("kind", f"{reference} ({error})", f"its parameters: {', '.join(known) or 'none'}") from None
    return dict(parameters)


# To a reference


def origin_of(part: Any) -> Origin | None:
    """What makes this part again, or None where nothing in a file does."""
    remembered = _origins.get(id(part))
    if isinstance(part, Policy):
        origin = remembered or _named(type(part))
        fields = {name: value for name, value in part if name != "kind"}
        return origin and dataclasses.replace(origin, parameters=fields, is_called=True)
    if remembered:
        return remembered
    if isinstance(part, type | FunctionType):
        return _named(part)
    origin, state = _named(type(part)), _state(part)
    return None if origin is None or state is None else dataclasses.replace(origin, parameters=state, is_called=True)


def _named(thing: type | FunctionType) -> Origin | None:
    """A class or function by its name in a file, or in a module of a package."""
    name, module = thing.__qualname__, sys.modules.get(thing.__module__)
    if module is None or getattr(module, name, None) is not thing:
        return None
    if content := content_of(module.__name__):
        return Origin(f"{content.path}:{name}", {}, content, is_called=False)
    specification = getattr(module, "__spec__", None)
    if getattr(module, "__package__", None) and specification is not None:
        return Origin(f"{specification.name}:{name}", {}, None, is_called=False)
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return None
    try:
        content = read_input(absolute(file, Path()))
    except InputError:
        return None
    return Origin(f"{content.path}:{name}", {}, content, is_called=False)


def _state(part: Any) -> dict[str, Any] | None:
    """The parameters that make an object again: those of a dataclass, or none for an object without state."""
    if dataclasses.is_dataclass(part):
        fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
        others = set(getattr(part, "__dict__", fields)) - set(fields)
        return fields if not others and all(map(_is_plain, fields.values())) else None
    try:
        stateless = part.__reduce_ex__(2) == (copyreg.__newobj__, (type(part),), None, None, None)  # type: ignore[attr-defined]
    except Exception:  # an object that refuses to be copied has state
        return None
    return {} if stateless else None


def _is_plain(value: Any) -> bool:
    """Whether TOML can hold the value; None is omitted."""
    if isinstance(value, list | tuple):
        return all(_is_plain(one) and one is not None for one in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return value is None or type(value) in (str, int, float, bool)


# To another process


@dataclasses.dataclass(frozen=True)
class PackedPart:
    """A part on its way to another process, with the content of its file: the file need not be there."""

    origin: Origin
    state: Any = None
    """The state of a `Policy`, which is not validated again."""

    def unpacked(self) -> Any:
        """The part."""
        origin = self.origin
        found, _ = load(origin.reference, "kind", origin.content)
        if isinstance(found, type) and issubclass(found, Policy) and self.state is not None:
            part: Any = found.__new__(found)
            part.__setstate__(self.state)
        elif not origin.is_called:
            part = found
        else:
            part = make_part(origin.reference, origin.parameters, origin.methods, content=origin.content)
        _remember(part, origin)
        return part


def packed(value: Any) -> Any:
    """The value of a field as it is pickled: parts from files become `PackedPart`, also within dicts."""
    if isinstance(value, dict):
        return {name: packed(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | tuple | list | Path | None):
        return value
    if isinstance(value, Policy) and is_registered(value):
        return value
    origin = origin_of(value)
    if origin is None or origin.content is None or getattr(value, "__module__", None) == "__main__":
        return value
    if isinstance(value, Policy):
        return PackedPart(dataclasses.replace(origin, parameters={}), value.__getstate__())
    return PackedPart(origin)


def unpacked(value: Any) -> Any:
    """What `packed` was given."""
    if isinstance(value, dict):
        return {name: unpacked(inner) for name, inner in value.items()}
    return value.unpacked() if isinstance(value, PackedPart) else value
