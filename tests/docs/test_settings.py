"""docs/settings.md comes from the code: `EFHC_WRITE_DOCS=1 pytest tests/docs/test_settings.py` renews it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from efhc.experiments.config.problems import kinds
from pydantic_core import PydanticUndefined

from efhc.base.policy import Policy
from efhc.experiments.config.experiment import Experiment

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def shown(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Policy):
        return f'kind "{dict(value)["kind"]}"'
    return "left out" if value is None else f"`{json.dumps(value)}`"


def rows(policy: type[Policy], skip: tuple[str, ...] = ("kind",)) -> list[str]:
    return [
        f"| `{name}` | {shown(field.default)} | {' '.join((field.description or '').split())} |"
        for name, field in policy.model_fields.items()
        if name not in skip
    ]


def page() -> str:
    tables = [name for name, field in Experiment.model_fields.items() if kinds(field.annotation)]
    lines = [
        "# Every setting",
        "",
        "A TOML file holds those that differ from the default; `efhc config show` prints all.",
        "",
    ]
    lines += ["| setting | default | |", "|---|---|---|", *rows(Experiment, ("strategies",))]
    for table in tables:
        title = "strategies.NAME" if table == "strategies" else table
        lines += ["", f"## `{title}`"]
        for kind, policy in kinds(Experiment.model_fields[table].annotation).items():
            about = " ".join((policy.__doc__ or "").split())
            lines += ["", f"**`{kind}`**: {about}"]
            if own := rows(policy):
                lines += ["", "| setting | default | |", "|---|---|---|", *own]
    return "\n".join(lines) + "\n"


def test_the_page_of_settings_is_that_of_the_code():
    if os.environ.get("EFHC_WRITE_DOCS"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()
