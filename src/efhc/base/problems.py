"""One clear line for whatever is wrong with a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from efhc.base.errors import InputError, Unusable, did_you_mean
from efhc.base.policy import Policy, kinds_of


def as_input_error(error: ValidationError, whole: type[Policy], tables: Mapping[str, Any] | None = None) -> InputError:
    """Return the first problem that pydantic found in a `whole`: the field, what was given, what is allowed.

    `tables` are what was validated. Names in them are suggested for an entry that has no kind.
    """
    problems = error.errors(include_url=False)
    # An entry that is wrong is also missing from its list: that is not a problem of its own.
    problems = [
        p for p in problems if p["type"] != "too_short" or all(len(q["loc"]) <= len(p["loc"]) for q in problems)
    ]
    field, policy = _place(problems[0]["loc"], whole)
    same_field = [p for p in problems if _place(p["loc"], whole)[0] == field]
    more = len({_place(p["loc"], whole)[0] for p in problems}) - 1
    suffix = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    kind, context = problems[0]["type"], problems[0].get("ctx", {})
    given = _shown(problems[0]["input"])
    if isinstance(inner := context.get("error"), Unusable):
        return InputError(".".join(filter(None, [field, inner.field])), inner.given, inner.allowed + suffix)
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
    setting, _, entry = field.partition(".")
    of = policy.model_fields.get(field.rpartition(".")[2]) or policy.model_fields.get(setting)
    kinds = kinds_of(of) if of else {}
    allowed = " or ".join(_allowed(p["msg"]) for p in same_field)
    if kind == "union_tag_not_found":
        siblings = (tables or {}).get(setting)
        given += did_you_mean(entry, [name for name in siblings if name != entry]) if isinstance(siblings, dict) else ""
        allowed = f"a table with a kind: {', '.join(kinds)}"
    elif kind == "model_attributes_type" and (example := _example(field, problems[0]["input"], kinds)):
        allowed = f"a table with a kind, such as {example}"
    return InputError(field, given, allowed + suffix)


def _example(field: str, value: Any, kinds: Mapping[str, type[Policy]]) -> str | None:
    """Return how to set `value`, a number, as the only parameter of a kind; None if no kind accepts it so."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    for kind, policy in kinds.items():
        names = [name for name in policy.model_fields if name != "kind"]
        if len(names) == 1 and policy.model_fields[names[0]].annotation is float:
            try:
                policy.model_validate({names[0]: value})
            except ValidationError:
                continue
            return f"{field}.kind={kind} {field}.{names[0]}={value}"
    return None


_IN_TOML_WORDS = {
    "a valid tuple": "a list",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid dictionary": "a table",
    "an instance of Path": "a path",
    "Input is not a valid path for <class 'pathlib.Path'>": "a path",
    "a valid number, unable to parse string as a number": "a number",
    "a valid dictionary or object to extract fields from": "a table with a kind, or an object made from a class",
}


def _allowed(message: str) -> str:
    if least := re.match(r"(?:Tuple|Dictionary) should have at least (\d+) item", message):
        return f"at least {least[1]} entry"
    if table := re.match(r"Input should be a valid dictionary or instance of (\w+)$", message):
        return f"a table with the settings of {table[1]}"
    for prefix in ("Input should be ", "Value error, "):
        message = message.removeprefix(prefix)
    return _IN_TOML_WORDS.get(message, message[0].lower() + message[1:])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str | int | float | list | tuple | dict) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _table_of(field: FieldInfo) -> type[Policy] | None:
    """Return the policy that a field holds, if it is a table without kinds."""
    inner = [field.annotation, *get_args(field.annotation)]
    return next((one for one in inner if isinstance(one, type) and issubclass(one, Policy)), None)


def _place(location: tuple[int | str, ...], whole: type[Policy]) -> tuple[str, type[Policy]]:
    """Return the dotted name of a pydantic location, without union members, and the policy that it ends in."""
    policy = whole
    members: dict[str, type[Policy]] = {}
    key_next, name_next = True, False
    names: list[str] = []
    for part in location:
        if key_next and isinstance(part, int):  # an entry of a list of tables
            names.append(str(part))
        elif key_next:
            names.append(str(part))
            field = policy.model_fields.get(str(part))
            members = kinds_of(field) if field else {}
            name_next = field is not None and get_origin(field.annotation) is dict
            table = _table_of(field) if field and not members else None
            policy, key_next = (table, True) if table else (policy, False)
        elif name_next or isinstance(part, int):
            names.append(str(part))
            name_next = False
        elif part in members:
            policy, key_next = members[str(part)], True
    return ".".join(names), policy
