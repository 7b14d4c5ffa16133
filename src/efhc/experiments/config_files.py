"""Config files: TOML in and out, `key.sub=value` overrides, and one clear line for whatever is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import ValidationError

from efhc.core.errors import EfhcError, InputError, did_you_mean
from efhc.core.policy import Policy
from efhc.experiments.config import Experiment
from efhc.inputs import CONFIG_FOLDER, read_text


def load_experiment(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment of a TOML file, with `key.sub=value` overrides applied in order."""
    try:
        tables = tomllib.loads(read_text(path, "config file"))
    except tomllib.TOMLDecodeError as error:
        raise InputError("config file", f"{path} ({error})", "a TOML file") from None
    return build_experiment(with_overrides(tables, overrides), path.parent)


def build_experiment(fields: Mapping[str, Any], folder: Path | None = None) -> Experiment:
    """The experiment of these fields, tables or objects; relative paths count from `folder`."""
    try:
        return Experiment.model_validate(dict(fields), context={CONFIG_FOLDER: folder or Path()})
    except ValidationError as error:
        raise _one_line(error) from None


def with_overrides(tables: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`tables` with `key.sub=value` set. A value is TOML, or else a string; a new `kind` resets its table."""
    changed = _copied(tables)
    for override in overrides:
        name, equals, text = override.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            raise InputError("override", repr(override), "key.sub=value")
        value = _toml_value(text.strip())
        if keys[-1] == "path" and isinstance(value, str):  # typed in a shell, it counts from the current folder
            value = str(Path(value).expanduser().absolute())
        if keys[0] not in changed and len(keys) > 1:  # a table that the file leaves out is changed from its default
            changed[keys[0]] = _copied(default_tables().get(keys[0], {}))
        table = changed
        for key in keys[:-1]:
            if not isinstance(table.setdefault(key, {}), dict):
                raise InputError("override", repr(override), f"keys of tables; {key} is a value")
            table = table[key]
        if keys[-1] == "kind" and table.get("kind") != value:
            table.clear()
        table[keys[-1]] = value
    return changed


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tables.items()}


def to_tables(experiment: Experiment) -> dict[str, Any]:
    """The complete config, nothing left out: what it takes to run the same again."""
    _refuse_python_objects(experiment, "")
    return _kind_first(experiment.model_dump(mode="json", exclude_none=True))


def _kind_first(tables: dict[str, Any]) -> dict[str, Any]:
    ordered = sorted(tables.items(), key=lambda item: item[0] != "kind")
    return {key: _kind_first(value) if isinstance(value, dict) else value for key, value in ordered}


def _refuse_python_objects(choice: Any, name: str) -> None:
    inner = dict(choice) if isinstance(choice, Policy) else choice
    if isinstance(inner, dict):
        for key, value in inner.items():
            _refuse_python_objects(value, f"{name}.{key}" if name else key)
    elif not isinstance(inner, str | int | float | tuple | Path | None):
        raise EfhcError(
            f"{name}: a {type(choice).__name__} made in Python cannot be written to a config file; "
            "run without a directory, or use a kind that a file can name"
        )


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


def _one_line(error: ValidationError) -> InputError:
    """The first problem that pydantic found, as field, what was given, what is allowed."""
    problems = error.errors(include_url=False)
    field, policy = _place(problems[0]["loc"])
    same_field = [p for p in problems if _place(p["loc"])[0] == field]
    more = len({_place(p["loc"])[0] for p in problems}) - 1
    suffix = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    kind, context = problems[0]["type"], problems[0].get("ctx", {})
    given = _shown(problems[0]["input"])
    if kind == "extra_forbidden":
        known = list(policy.model_fields)
        word = str(problems[0]["loc"][-1])
        return InputError(field, f"an unknown key{did_you_mean(word, known)}", ", ".join(known) + suffix)
    if kind == "missing":
        return InputError(field, "nothing", f"a value: this key is required{suffix}")
    if kind == "union_tag_invalid":
        known = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        word = str(context["tag"])
        return InputError(f"{field}.kind", f"'{word}'{did_you_mean(word, known)}", ", ".join(known) + suffix)
    if kind == "union_tag_not_found":
        return InputError(field, given, f"a table with a kind{suffix}")
    allowed = " or ".join(_allowed(p["msg"]) for p in same_field)
    return InputError(field, given, allowed + suffix)


_IN_TOML_WORDS = {
    "a valid tuple": "a list",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid dictionary": "a table",
}


def _allowed(message: str) -> str:
    for prefix in ("Input should be ", "Value error, "):
        message = message.removeprefix(prefix)
    return _IN_TOML_WORDS.get(message, message[0].lower() + message[1:])


def _shown(value: Any) -> str:
    text = (
        repr(value)
        if isinstance(value, str | int | float | bool | list | tuple | dict)
        else f"a {type(value).__name__}"
    )
    return text if len(text) <= 60 else text[:57] + "..."


def _place(location: tuple[int | str, ...]) -> tuple[str, type[Policy]]:
    """The dotted name of a pydantic location, without the union members in it, and the policy it ends in."""
    policy: type[Policy] = Experiment
    kinds: dict[str, type[Policy]] = {}
    key_next, name_next = True, False
    names: list[str] = []
    for part in location:
        if key_next:
            names.append(str(part))
            field = policy.model_fields.get(str(part))
            kinds = _kinds(field.annotation) if field else {}
            key_next, name_next = False, field is not None and get_origin(field.annotation) is dict
        elif name_next or isinstance(part, int):
            names.append(str(part))
            name_next = False
        elif part in kinds:
            policy, key_next = kinds[str(part)], True
    return ".".join(names), policy


def _kinds(annotation: Any) -> dict[str, type[Policy]]:
    """The policies in a (union) type by their kind."""
    if isinstance(annotation, type) and issubclass(annotation, Policy) and "kind" in annotation.model_fields:
        return {annotation.model_fields["kind"].default: annotation}
    return {kind: policy for member in get_args(annotation) for kind, policy in _kinds(member).items()}
