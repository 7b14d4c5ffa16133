"""Which kinds there are. A built-in kind is one class in one file, and this finds it.

A family is everything that one setting may be: all networks, all partitions, ... Its kinds are the concrete subclasses
of its base class that have a `kind`, in the modules and packages where the family lives, and those that installed
packages add by an entry point of the group `efhc.kinds`. Configs, `efhc.NAME`, the docs and the errors read them here.

A placeholder stands for a part that is not available: it can be read and written, and refuses to run.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from efhc.base.errors import EfhcError, Unusable
from efhc.base.inputs import CONFIG_FOLDER
from efhc.base.own_code import ALLOWED, absolute_reference, has_any, make_part
from efhc.base.policy import Policy, installed_kinds, kind_of

RUN_CODE = "run_code"
"""Key of the validation context that says whether code that a config names may run. Default: it may."""

NOT_KEPT = "not-kept"


@dataclass(frozen=True)
class Family:
    """All that one setting may be. As metadata, `Annotated[Network, Family(...)]`, it validates a field."""

    base: type[Policy] | tuple[type[Policy], ...]
    """The base class of the kinds, or several."""
    places: tuple[str, ...]
    """The modules and packages with the kinds."""
    methods: tuple[str, ...]
    """An object of the user's own must have one of these."""
    default: str | None = None
    """The kind of a table that does not name one."""
    from_python: Callable[[Any], Any] = lambda given: given
    """Turns what Python users may pass besides objects into one of those or a table."""
    python_types: tuple[str, ...] = ()
    """The types that `from_python` turns into one of those, as type checkers read them."""
    from_code: Callable[[str, Mapping[str, Any]], Any] | None = None
    """Makes a table of a reference to code that has none of the methods, and of its parameters."""

    @property
    def bases(self) -> tuple[type[Policy], ...]:
        """The base classes of the kinds."""
        return self.base if isinstance(self.base, tuple) else (self.base,)

    def kinds(self) -> dict[str, type[Policy]]:
        """Return the built-in kinds and those of installed packages."""
        found = self.built_in()
        for policy in installed_kinds():
            if issubclass(policy, self.base):
                found.setdefault(kind_of(policy) or "", policy)
        return found

    def built_in(self) -> dict[str, type[Policy]]:
        """Return the kinds that come with efhc, those in the module of the default first."""
        found = [policy for place in self.places for module in _modules(place) for policy in self._defined_in(module)]
        home = next((policy.__module__ for policy in found if kind_of(policy) == self.default), None)
        found.sort(key=lambda policy: policy.__module__ != home)
        return {kind_of(policy) or "": policy for policy in found}

    def _defined_in(self, module: ModuleType) -> Iterator[type[Policy]]:
        for thing in list(vars(module).values()):
            is_own = isinstance(thing, type) and thing.__module__ == module.__name__
            if is_own and issubclass(thing, self.base) and not inspect.isabstract(thing) and kind_of(thing):
                yield thing

    # Validation

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = {kind: handler.generate_schema(policy) for kind, policy in self.kinds().items()}
        union = core_schema.tagged_union_schema(members, discriminator="kind")
        return core_schema.with_info_wrap_validator_function(self._validated, union)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own = {"type": "string", "pattern": ":", "description": f"Your own code: {ALLOWED}."}
        table = {"type": "object", "properties": {"kind": own}, "required": ["kind"]}
        return {"anyOf": [handler(schema), {"enum": sorted(self.kinds())}, own, table]}

    def _validated(self, given: Any, validate: Callable[[Any], Any], info: ValidationInfo) -> Any:
        table = self._as_table(self.from_python(given))
        if not isinstance(table, dict):
            is_object = not isinstance(table, list | tuple | str | bytes | type)
            return table if is_object and has_any(table, self.methods) else validate(table)
        kind = table.get("kind")
        if kind == NOT_KEPT:
            return NotKept.model_validate(table)
        return self._own(table, validate, info) if isinstance(kind, str) and ":" in kind else validate(table)

    def _as_table(self, given: Any) -> Any:
        if isinstance(given, str):
            return {"kind": given}
        return {"kind": self.default, **given} if isinstance(given, dict) and self.default else given

    def _own(self, table: dict[str, Any], validate: Callable[[Any], Any], info: ValidationInfo) -> Any:
        parameters = {name: value for name, value in table.items() if name != "kind"}
        try:
            reference = absolute_reference(table["kind"], (info.context or {}).get(CONFIG_FOLDER, Path()))
        except ValueError as error:
            raise Unusable("kind", repr(table["kind"]), str(error)) from None
        if not (info.context or {}).get(RUN_CODE, True):
            return NotRun(kind=reference, arguments=parameters)
        if self.from_code and (other := self.from_code(reference, parameters)) is not None:
            return validate(other)
        return make_part(reference, parameters, self.methods, info.context)


@functools.cache
def _modules(place: str) -> tuple[ModuleType, ...]:
    """Return a module; for a package, the package and all modules in it, by name."""
    module = importlib.import_module(place)
    inner = sorted(one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ())))
    return module, *(importlib.import_module(f"{place}.{name}") for name in inner)


# Placeholders


class Placeholder(Policy):
    """Has every method that a part may have, and each raises `EfhcError`."""

    def why(self) -> str:
        """Return why the part is not available, and what to do."""
        raise NotImplementedError

    def refuse(self, *_args: Any, **_named: Any) -> Any:
        """Raise `EfhcError`, in place of every method."""
        raise EfhcError(self.why())


METHODS = (
    *("thresholds", "over_time", "graph", "draw", "load", "split", "models", "__call__"),
    *("parameters", "initial", "loss_and_gradient"),
    *("transfers", "events", "open"),
)
for _method in METHODS:
    setattr(Placeholder, _method, Placeholder.refuse)


class NotKept(Placeholder):
    """Stands for a part that was made in Python, in the config of a result that was saved without it."""

    kind: Literal["not-kept"] = "not-kept"
    description: str
    """What the part was."""

    def why(self) -> str:
        return f"this part was not kept: {self.description}; make the experiment in Python again to run it"


class NotRun(Placeholder):
    """Stands for a part of the user's own code, in an experiment that was built without running any code."""

    kind: str
    """The reference to the code."""
    arguments: dict[str, Any]
    """The parameters beside it."""

    def why(self) -> str:
        return f"the code of {self.kind} was not run; load the config with its code to run the experiment"
