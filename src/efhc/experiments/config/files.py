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
from efhc.base.own_code import WHAT_TO_DO, absolute_reference, file_of, origin_of
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
    """Return the tables of a TOML file, of a figure of the paper by its name, or of an example that ships with efhc.

    Without a name, an experiment is called as its file, without the ending.
    """
    file = config_file(path)
    if is_folder(file):
        inside = file / "config.toml"
        hint = f"Use the file {inside}." if inside.exists() else "Use a TOML file."
        raise InputError("config file", path, "a TOML file", f"{path} is a folder. {hint}")
    try:
        return {"name": file.stem} | tomllib.loads(read_text(file, "config file"))
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
    read and written, but refuses to run; then settings that earlier versions had are left out. Raises `InputError` if a
    field cannot be used.
    """
    fields = fields if run_code else IMPLIED | _without_removed(fields)
    try:
        return Experiment.model_validate(dict(fields), context={CONFIG_FOLDER: folder or Path(), RUN_CODE: run_code})
    except ValidationError as error:
        if (removed := removed_setting(fields)) is not None:
            if (new := RENAMED.get(removed)) is not None:
                problem = f"only efhc 0.2 had this setting. Use {new}."
                raise InputError(removed, "a setting of efhc 0.2", new, problem) from None
            problem = "only efhc 0.2 had this setting. Remove it, and start anew what 0.2 began."
            raise InputError(removed, "a setting of efhc 0.2", "no such key", problem) from None
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
    if isinstance(value, str) and (name.rpartition(".")[2] in ("path", "test_path") or name == "model.weights"):
        return str(absolute(value, Path()))
    return absolute_reference(value, Path()) if isinstance(value, str) and file_of(value) else value


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
            changed[keys[0]] = to_tables(Experiment()).get(keys[0], {})
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


def flat_settings(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value of nested tables or policies, with its dotted key.

    A bare word in place of a table is its `kind`, and so is a part that is the user's own code.
    """
    if isinstance(settings, Policy):
        if not is_registered(settings):
            yield f"{name}.kind", settings
        settings = dict(settings)
    if not isinstance(settings, Mapping):
        yield name or "kind", settings
        return
    for key, value in settings.items():
        yield from flat_settings(value, f"{name}.{key}" if name else key)


Unnamed = Literal["refuse", "describe"]


def to_tables(experiment: Experiment, unnamed: Unnamed = "refuse", *, none: str | None = None) -> dict[str, Any]:
    """Return the complete config: what it takes to run the same again.

    A part that was made in Python and cannot be named by a file raises `EfhcError`; with unnamed="describe", the table
    says what it was, and an experiment that is built from it refuses to run. `none` stands for settings without a
    value. Default: they are left out.
    """

    def table_of(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
        places = {key: f"{name}.{key}" if name else key for key in settings}
        table = {key: none if value is None else plain(value, places[key]) for key, value in settings.items()}
        for key, value in table.items():
            if is_name_only(places[key]) and isinstance(value, dict):  # not kept, and nothing else of the table counts
                return value
        return {key: value for key, value in table.items() if value is not None}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, NotRun):
            value = {"kind": value.kind, **value.arguments}
        elif isinstance(value, Policy) and is_registered(value):
            kind = {"kind": dict(value)["kind"]} if "kind" in type(value).model_fields else {}
            value = kind | dict(value)  # the kind comes first
        if isinstance(value, dict):
            return table_of(value, name)
        if isinstance(value, list | tuple):
            return [plain(one, name) for one in value]
        if isinstance(value, Path):
            return str(value)
        return value if isinstance(value, str | int | float | None) else own(value, name)

    def own(part: Any, name: str) -> Any:
        """Return the name and the parameters of a part that is the user's own code."""
        origin = origin_of(part)
        if origin is not None and is_name_only(name) and not origin.parameters:
            return origin.reference
        if origin is not None and not is_name_only(name):
            return table_of({"kind": origin.reference, **(origin.parameters or {})}, name)
        if unnamed == "describe":
            described = f"{name}: {getattr(part, '__qualname__', type(part).__name__)} made in Python"
            return {"kind": NOT_KEPT, "description": described}
        made = f"{name}: a {type(part).__name__} made in Python"
        raise EfhcError(f"{made} cannot be written to a config file; {WHAT_TO_DO}")

    return table_of(dict(experiment), "")


def is_name_only(setting: str) -> bool:
    """Return whether the value of a setting is a reference to code, and not a table."""
    return (
        setting in ("model.module", "model.loss") or re.fullmatch(r"model\.metrics\.\w+\.function", setting) is not None
    )


def read_inputs(experiment: Experiment) -> dict[str, InputContent]:
    """Return the files that the experiment reads, by the name of the setting, each read once.

    Folders are left out. Code is what the experiment's parts were made from, whatever the file holds by now. What is
    computed within `using_inputs` of these files is computed from the content that was read.
    """
    read: dict[Path, InputContent] = {}
    contents = {}
    for name, value in flat_settings(experiment):
        is_code = is_name_only(name) or name.endswith(".kind")
        path, content = None, None
        if isinstance(value, Path):
            path = None if is_folder(value) else value
        elif isinstance(value, str):
            path = file_of(value) if is_code else None
        elif not isinstance(value, int | float | tuple | None) and (origin := origin_of(value)) and origin.content:
            path, content = origin.content.path, origin.content
            name = name if is_code else f"{name}.kind"  # noqa: PLW2901
        if path is not None:
            contents[name] = read[path] = read.get(path) or content or read_input(path, name)
    return contents


NONE = "(none) of efhc"


def to_toml(experiment: Experiment, unnamed: Unnamed = "refuse", *, show_none: bool = False) -> str:
    """Return the complete config as TOML; with `show_none`, settings without a value are comments."""
    toml = tomli_w.dumps(to_tables(experiment, unnamed, none=NONE if show_none else None))
    return re.sub(f'^(.+) = "{re.escape(NONE)}"$', r"# \1 = (none)", toml, flags=re.MULTILINE)


BUDGETS = list(Experiment.model_fields["budgets"].default)
IMPLIED: dict[str, Any] = {"driver": {"kind": "lockstep"}, "evaluate_at": "multiples", "budgets": BUDGETS}
"""What a config means that lacks a setting, because it was written before there was one."""
LOG, MEASURE = "log", "measure"
"""Settings that do not determine results, and are no part of the key of a run."""
NAME = "name"
"""The name of an experiment does not determine results either; in keys of runs it is always the same."""


REMOVED = "per"
"""A setting that efhc 0.2 had, in the tables of `HAD_REMOVED`."""
HAD_REMOVED = ("estimates", "entrywise", "one-way", "choco", "sparq")
RENAMED = {"driver.target_accuracy": "driver.target"}
"""Settings that efhc 0.2 had, and what they are called now, in the same table."""


def _has_removed(table: Mapping[str, Any]) -> bool:
    return table.get("kind") in HAD_REMOVED and REMOVED in table


def _without_removed(table: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Return a table as this version can read it, if efhc 0.2 wrote it."""
    if _has_removed(table) and table["kind"] == "one-way":  # it made other messages, and took any rate
        return {"kind": NOT_KEPT, "description": "one-way of efhc 0.2"}
    left = {key: value for key, value in table.items() if not (key == REMOVED and _has_removed(table))}
    left = {RENAMED.get(name + key, name + key).removeprefix(name): value for key, value in left.items()}
    return {
        key: _without_removed(value, f"{name}{key}.") if isinstance(value, Mapping) else value
        for key, value in left.items()
    }


def removed_setting(table: Mapping[str, Any], name: str = "") -> str | None:
    """Return the dotted key of a setting that efhc 0.2 had and this version has not. None if there is none."""
    if _has_removed(table):
        return f"{name}{REMOVED}"
    if renamed := next((name + key for key in table if name + key in RENAMED), None):
        return renamed
    inner = (removed_setting(value, f"{name}{key}.") for key, value in table.items() if isinstance(value, Mapping))
    return next(filter(None, inner), None)


def without_implied(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines results, as it was written before there was a setting that it does not use."""
    return {key: value for key, value in tables.items() if key not in (LOG, MEASURE) and IMPLIED.get(key) != value}


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first key at which the results of two configs may differ, with its value in each; None if none may."""
    a, b = (
        dict(flat_settings(IMPLIED | {key: one[key] for key in one if key not in (LOG, MEASURE, NAME)}))
        for one in (before, after)
    )
    return next(((key, a.get(key), b.get(key)) for key in [*a, *b] if a.get(key) != b.get(key)), None)
