"""Config files: TOML in and out, `key.sub=value` overrides, and one clear line for whatever is wrong."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ValidationError

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import CONFIG_FOLDER, InputContent, absolute, is_folder, read_input, read_text
from efhc.base.own_code import IN_A_FILE, WHAT_TO_DO, absolute_reference, file_of, origin_of
from efhc.base.policy import Policy, as_input_error, family_of, is_registered
from efhc.base.registry import NOT_KEPT, RUN_CODE, NotRun
from efhc.experiments.config.experiment import Experiment

SWEEP, FIGURE = "sweep", "figure"
"""Tables of a config file beside the experiment: what `efhc sweep` varies, and which figure `efhc reproduce` draws."""


PRESETS = Path(str(resources.files("efhc") / "presets"))
"""One file for each figure of the paper."""

EXAMPLES = PRESETS.parent / "examples"
"""The example configs of an installed efhc; in a checkout they are in the folder `examples` itself."""


def figure_names() -> list[str]:
    """Return the names of the paper's figures, in the paper's order."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_experiment(path: Path | str, overrides: Iterable[str] = ()) -> Experiment:
    """Return the experiment of a TOML file, with `key.sub=value` overrides applied in order.

    Raises `InputError` if the file cannot be read or a setting cannot be used.
    """
    tables = read_tables(path)
    return build_experiment(with_overrides(only_experiment(tables), overrides), config_file(path).parent)


def read_tables(path: Path | str) -> dict[str, Any]:
    """Return the tables of a TOML file, of a figure of the paper by its name, or of an example that ships with efhc."""
    file = config_file(path)
    if is_folder(file):
        inside = file / "config.toml"
        hint = f"Use the file {inside}." if inside.exists() else "Use a TOML file."
        raise InputError("config file", path, "a TOML file", f"{path} is a folder. {hint}")
    try:
        return tomllib.loads(read_text(file, "config file"))
    except (ValueError, RecursionError) as error:
        raise InputError("config file", path, "a TOML file", f"{path} is not valid TOML: {error}.") from None


def config_file(path: Path | str) -> Path:
    """Return where the file is. `examples/NAME.toml` is one that ships with efhc, unless the current folder has it."""
    if str(path) in figure_names():
        return PRESETS / f"{path}.toml"
    shipped = EXAMPLES / Path(path).name
    is_shipped = Path(path) == Path("examples", shipped.name) and shipped.is_file()
    return shipped if is_shipped and not os.path.exists(path) else Path(path)  # noqa: PTH110 - takes any name


def only_experiment(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables without those that are for other commands than `efhc run`."""
    return {key: value for key, value in tables.items() if key not in {SWEEP, FIGURE}}


def build_experiment(fields: Mapping[str, Any], folder: Path | None = None, *, run_code: bool = True) -> Experiment:
    """Return the experiment of these fields, which are tables or objects; relative paths count from `folder`.

    This runs the code of the files that the tables name. With run_code=False it does not, and the experiment can be
    read and written, but refuses to run. Raises `InputError` if a field cannot be used.
    """
    try:
        return Experiment.model_validate(dict(fields), context={CONFIG_FOLDER: folder or Path(), RUN_CODE: run_code})
    except ValidationError as error:
        raise as_input_error(error, Experiment, fields) from None


def with_overrides(tables: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return `tables` with every `key.sub=value` set. A value that is not TOML is a string."""
    settings: list[tuple[str, Any]] = []
    for override in overrides:
        name, value = parse_override(override)
        settings.append((name, _from_here(name, value)))
    return with_settings(tables, settings)


def _from_here(name: str, value: Any) -> Any:
    """Return a value that was typed in a shell: its paths count from the current folder."""
    if isinstance(value, list):
        return [_from_here(name, one) for one in value]
    if isinstance(value, str) and name.rpartition(".")[2] in ("path", "test_path"):
        return str(absolute(value, Path()))
    return absolute_reference(value, Path()) if isinstance(value, str) and IN_A_FILE.match(value) else value


def parse_override(override: str) -> tuple[str, Any]:
    """Return the name and the value of `key.sub=value`. A value that is not TOML is a string."""
    name, equals, text = override.partition("=")
    if not equals or not all(name.strip().split(".")):
        raise InputError("override", repr(override), "KEY=VALUE, such as network.radius=0.5")
    return name.strip(), _toml_value(text.strip())


def with_settings(tables: Mapping[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return `tables` with each `key.sub` set to its value, in order. A new `kind` or `module` resets its table."""
    changed = _copied(tables)
    for name, value in settings:
        keys = name.split(".")
        if keys[0] not in changed and len(keys) > 1:  # a table that the file leaves out is changed from its default
            changed[keys[0]] = _copied(default_tables().get(keys[0], {}))
        table = changed
        for key in keys[:-1]:
            if isinstance(table.get(key), str) and _is_family(keys[0]):  # a bare word is a kind
                table[key] = {"kind": table[key]}
            if not isinstance(table.setdefault(key, {}), dict):
                raise InputError(name, value, f"{key}=VALUE", f"{key} has no settings of its own. Use {key}=VALUE.")
            table = table[key]
        if (keys[-1] == "kind" and table.get("kind") != value) or (keys[-1] == "module" and "module" not in table):
            table.clear()
        table[keys[-1]] = value
    return changed


def _is_family(name: str) -> bool:
    field = Experiment.model_fields.get(name)
    return field is not None and family_of(field) is not None


def _toml_value(text: str) -> Any:
    try:
        tables = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tables["value"] if len(tables) == 1 else text


def _copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tables.items()}


def flat_settings(tables: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value of nested tables, with its dotted key. A bare word in place of a table is its `kind`."""
    if not isinstance(tables, Mapping):
        yield name or "kind", tables
        return
    for key, value in tables.items():
        yield from flat_settings(value, f"{name}.{key}" if name else key)


def to_tables(experiment: Experiment, unnamed: Unnamed = "refuse") -> dict[str, Any]:
    """Return the complete config: what it takes to run the same again.

    A part that was made in Python and cannot be named by a file raises `EfhcError`; with unnamed="describe", the table
    says what it was, and an experiment that is built from it refuses to run.
    """
    tables: dict[str, Any] = _dumped(experiment, "", unnamed)
    return tables


Unnamed = Literal["refuse", "describe"]


def _dumped(value: Any, name: str, unnamed: Unnamed) -> Any:
    if isinstance(value, NotRun):
        value = {"kind": value.kind, **value.arguments}
    elif isinstance(value, Policy) and is_registered(value):
        kind = {"kind": dict(value)["kind"]} if "kind" in type(value).model_fields else {}
        value = kind | dict(value)  # the kind comes first
    if isinstance(value, dict):
        return _dumped_table(value, name, unnamed)
    if isinstance(value, list | tuple):
        return [_dumped(one, name, unnamed) for one in value]
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, str | int | float | None) else _dumped_own(value, name, unnamed)


def _dumped_table(table: Mapping[str, Any], name: str, unnamed: Unnamed) -> dict[str, Any]:
    places = {key: f"{name}.{key}" if name else key for key in table}
    dumped = {key: _dumped(value, places[key], unnamed) for key, value in table.items()}
    for key, value in dumped.items():
        if places[key] in NAMES_ONLY and isinstance(value, dict):  # not kept, and nothing else of the table is of use
            return value
    return {key: value for key, value in dumped.items() if value is not None}


def _dumped_own(part: Any, name: str, unnamed: Unnamed) -> Any:
    """Return the name and the parameters of a part that is the user's own code."""
    origin = origin_of(part)
    if origin is not None and name in NAMES_ONLY and not origin.parameters:
        return origin.reference
    if origin is not None and name not in NAMES_ONLY:
        return _dumped_table({"kind": origin.reference, **origin.parameters}, name, unnamed)
    if unnamed == "describe":
        described = f"{name}: {getattr(part, '__qualname__', type(part).__name__)} made in Python"
        return {"kind": NOT_KEPT, "description": described}
    raise EfhcError(f"{name}: a {type(part).__name__} made in Python cannot be written to a config file; {WHAT_TO_DO}")


NAMES_ONLY = ("model.module", "model.loss")
"""Settings whose value is a reference, and not a table."""


def _leaves(choice: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value in a choice, and every part of the user's own, with its dotted name."""
    if isinstance(choice, Policy) and not is_registered(choice):
        yield f"{name}.kind", choice
    inner = dict(choice) if isinstance(choice, Policy) else choice
    if isinstance(inner, dict):
        for key, value in inner.items():
            yield from _leaves(value, f"{name}.{key}" if name else key)
    elif isinstance(inner, str | int | float | tuple | Path | None) or name in NAMES_ONLY:
        yield name, inner
    else:
        yield f"{name}.kind", inner


def input_files(experiment: Experiment) -> dict[str, Path]:
    """Return the files that the experiment reads, by the name of the setting, without the files in folders."""
    return {name: path for name, (path, _) in _inputs(experiment).items()}


def read_inputs(experiment: Experiment) -> dict[str, InputContent]:
    """Return the files that the experiment reads, by the name of the setting, each read once.

    Code is what the experiment's parts were made from, whatever the file holds by now. What is computed within
    `using_inputs` of these files is computed from the content that was read.
    """
    read: dict[Path, InputContent] = {}
    contents = {}
    for name, (path, content) in _inputs(experiment).items():
        if path not in read:
            read[path] = content or read_input(path, name)
        contents[name] = read[path]
    return contents


def _inputs(experiment: Experiment) -> dict[str, tuple[Path, InputContent | None]]:
    """Return the path of each input file, and its content if a part was made from it."""
    found: dict[str, tuple[Path, InputContent | None]] = {}
    for name, value in _leaves(experiment):
        if isinstance(value, Path):
            if not is_folder(value):
                found[name] = value, None
        elif isinstance(value, str):
            if (name in NAMES_ONLY or name.endswith(".kind")) and (file := file_of(value)):
                found[name] = file, None
        elif not isinstance(value, int | float | tuple | None) and (origin := origin_of(value)) and origin.content:
            found[name] = origin.content.path, origin.content
    return found


def to_toml(experiment: Experiment, unnamed: Unnamed = "refuse", *, show_none: bool = False) -> str:
    """Return the complete config as TOML; with `show_none`, settings without a value are comments."""
    if not show_none:
        return tomli_w.dumps(to_tables(experiment, unnamed))
    with_none = _with_none(experiment, to_tables(experiment, unnamed))
    return re.sub(f'^(.+) = "{re.escape(NONE)}"$', r"# \1 = (none)", tomli_w.dumps(with_none), flags=re.MULTILINE)


NONE = "(none) of efhc"


def _with_none(choice: Any, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a choice, with a mark in place of every setting that is None."""
    fields = dict(choice)
    marked: dict[str, Any] = {name: NONE for name, value in fields.items() if value is None}
    for name, table in tables.items():
        is_choice = isinstance(fields.get(name), Policy | dict) and isinstance(table, dict)
        marked[name] = _with_none(fields[name], table) if is_choice else table
    return {name: marked[name] for name in ["kind", *fields, *tables] if name in marked}


def default_tables() -> dict[str, Any]:
    """Return the config of an empty file: every setting at its default."""
    return to_tables(Experiment())


IMPLIED: dict[str, Any] = {"driver": {"kind": "lockstep"}}
"""What a config means that lacks a setting, because it was written before there was one."""
LOG = "log"
"""The setting that does not determine results."""


def without_implied(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines results, as it was written before there was a setting that it does not use."""
    return {key: value for key, value in tables.items() if key != LOG and IMPLIED.get(key) != value}


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first key at which the results of two configs may differ, with its value in each; None if none may."""
    return _first_difference(
        *(IMPLIED | {key: tables[key] for key in tables if key != LOG} for tables in (before, after))
    )


def _first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    for key in [*before, *(key for key in after if key not in before)]:
        a, b = before.get(key), after.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if deeper := _first_difference(a, b):
                return f"{key}.{deeper[0]}", deeper[1], deeper[2]
        elif a != b:
            return key, a, b
    return None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a config file."""
    return Experiment.model_json_schema()
