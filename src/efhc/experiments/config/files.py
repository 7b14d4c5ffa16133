"""Config files: TOML in and out, `key.sub=value` overrides, and one clear line for whatever is wrong."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import CONFIG_FOLDER, absolute, is_folder, read_text
from efhc.base.policy import Policy
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.problems import as_input_error

SWEEP, FIGURE = "sweep", "figure"
"""Tables of a config file beside the experiment: what `efhc sweep` varies, and which figure `efhc reproduce` draws."""


PRESETS = Path(str(resources.files("efhc") / "presets"))
"""One file for each figure of the paper."""

EXAMPLES = PRESETS.parent / "examples"
"""The example configs of an installed efhc; in a checkout they are in the folder `examples` itself."""


def figure_names() -> list[str]:
    """Of the paper's figures, in its order."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_experiment(path: Path | str, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment of a TOML file, with `key.sub=value` overrides applied in order."""
    tables = read_tables(path)
    return build_experiment(with_overrides(only_experiment(tables), overrides), _config_file(path).parent)


def read_tables(path: Path | str) -> dict[str, Any]:
    """The tables of a TOML file, of a figure of the paper by its name, or of an example that ships with efhc."""
    try:
        return tomllib.loads(read_text(_config_file(path), "config file"))
    except (ValueError, RecursionError) as error:
        raise InputError("config file", f"{path} ({error})", "a TOML file") from None


def _config_file(path: Path | str) -> Path:
    """Where the file is: `examples/NAME.toml` is one that ships with efhc, unless the current folder has it."""
    if str(path) in figure_names():
        return PRESETS / f"{path}.toml"
    shipped = EXAMPLES / Path(path).name
    is_shipped = Path(path) == Path("examples", shipped.name) and shipped.is_file()
    return shipped if is_shipped and not os.path.exists(path) else Path(path)  # noqa: PTH110 - takes any name


def only_experiment(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Without the tables that are for other commands."""
    return {key: value for key, value in tables.items() if key not in {SWEEP, FIGURE}}


def build_experiment(fields: Mapping[str, Any], folder: Path | None = None) -> Experiment:
    """The experiment of these fields, tables or objects; relative paths count from `folder`."""
    try:
        return Experiment.model_validate(dict(fields), context={CONFIG_FOLDER: folder or Path()})
    except ValidationError as error:
        raise as_input_error(error, Experiment) from None


def with_overrides(tables: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`tables` with `key.sub=value` set: TOML or else a string."""
    settings: list[tuple[str, Any]] = []
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not all(name.strip().split(".")):
            raise InputError("override", repr(override), "key.sub=value")
        value = _toml_value(text.strip())
        if isinstance(value, str) and (name.strip().split(".")[-1] == "path" or _is_code(name, value)):
            value = str(absolute(value, Path()))  # typed in a shell, it counts from the current folder
        settings.append((name.strip(), value))
    return with_settings(tables, settings)


def with_settings(tables: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """`tables` with each `key.sub` set to its value, in order. A new `kind` or `module` resets its table."""
    changed = _copied(tables)
    for name, value in settings:
        keys = name.split(".")
        if keys[0] not in changed and len(keys) > 1:  # a table that the file leaves out is changed from its default
            changed[keys[0]] = _copied(default_tables().get(keys[0], {}))
        table = changed
        for key in keys[:-1]:
            if not isinstance(table.setdefault(key, {}), dict):
                raise InputError(name, f"a setting of {key}, which is a value here", "keys of tables")
            table = table[key]
        if (keys[-1] == "kind" and table.get("kind") != value) or (keys[-1] == "module" and "module" not in table):
            table.clear()
        table[keys[-1]] = value
    return changed


def _toml_value(text: str) -> Any:
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tables["value"] if len(tables) == 1 else text


def _copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tables.items()}


def to_tables(experiment: Experiment) -> dict[str, Any]:
    """The complete config, nothing left out: what it takes to run the same again."""
    for name, value in _leaves(experiment):
        if not isinstance(value, str | int | float | tuple | Path | None):
            raise EfhcError(
                f"{name}: a {type(value).__name__} made in Python cannot be written to a config file; "
                "run without a directory, or use a kind that a file can name"
            )
    return _kind_first(experiment.model_dump(mode="json", exclude_none=True))


def _kind_first(tables: dict[str, Any]) -> dict[str, Any]:
    ordered = sorted(tables.items(), key=lambda item: item[0] != "kind")
    return {key: _kind_first(value) if isinstance(value, dict) else value for key, value in ordered}


def _leaves(choice: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value in a choice, with its dotted name."""
    inner = dict(choice) if isinstance(choice, Policy) else choice
    if isinstance(inner, dict):
        for key, value in inner.items():
            yield from _leaves(value, f"{name}.{key}" if name else key)
    else:
        yield name, inner


def input_files(experiment: Experiment) -> dict[str, Path]:
    """The files that the experiment reads, by the name of the setting. Those of a folder come with the data's own."""
    leaves = dict(_leaves(experiment))
    code = {name: Path(value.rpartition(":")[0]) for name, value in leaves.items() if _is_code(name, value)}
    return {name: value for name, value in leaves.items() if isinstance(value, Path) and not is_folder(value)} | code


def _is_code(name: str, value: Any) -> bool:
    """Whether a setting names something in a file of Python."""
    return name.strip() in {"model.module", "model.loss"} and isinstance(value, str) and ".py:" in value


def to_toml(experiment: Experiment) -> str:
    """The complete config as TOML."""
    return tomli_w.dumps(to_tables(experiment))


def default_tables() -> dict[str, Any]:
    """The config of an empty file."""
    return to_tables(Experiment())


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first key at which two configs differ, with its value in each."""
    for key in [*before, *(key for key in after if key not in before)]:
        a, b = before.get(key), after.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if deeper := first_difference(a, b):
                return f"{key}.{deeper[0]}", deeper[1], deeper[2]
        elif a != b:
            return key, a, b
    return None


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config file."""
    return Experiment.model_json_schema()
