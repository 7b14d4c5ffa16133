"""Facts about a run in words: where it comes from, how long it took, and how to make it again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from efhc.base.policy import family_of
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.nodes.launch import mode_in
from efhc.watch.discovery import FoundGroup, FoundRun, store_in


def describe(run: FoundRun, group: FoundGroup) -> dict[str, str]:
    """Return facts about a run, or about a set of nodes, by name. Unknown facts are left out."""
    if group.kind == "nodes":
        return {"nodes in": group.folder.name, "made by": "nodes of the network runtime, which answer on their sockets"}
    meta, warnings = run.meta, run.meta.get("warnings")
    machine, versions = _table(meta, "machine"), _table(meta, "versions")
    cores = f"{machine['cores']} cores" if "cores" in machine else ""
    facts = {
        "experiment": run.experiment or run.config.get("name", ""),
        "strategy": f"{run.strategy}, seed {run.seed}",
        "devices": f"{run.devices:,}",
        "iterations": f"{run.iterations:,}",
        **{name: _kind(run, name) for name in ("data", "partition", "model", "network")},
        "driver": run.driver,
        "backend": meta.get("backend", ""),
        "made by": group.meta.get("made_by", ""),
        "started": meta.get("started", ""),
        "finished": meta.get("finished", ""),
        "time": _took(meta),
        "machine": ", ".join(filter(None, (str(machine.get("system") or ""), cores))),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git": _table(meta, "git").get("commit", ""),
        "warnings": "; ".join(map(str, warnings)) if isinstance(warnings, list) else "",
        "problem": run.problem or "",
    }
    return {name: words for name, fact in facts.items() if (words := str(fact))}


def repeat_command(run: FoundRun, group: FoundGroup) -> str:
    """Return the command that makes a run again or, if it was stopped, goes on with it.

    Of its meta.json, which others may have written, only the mode of its nodes and the place of its store are used.
    """
    if group.kind == "nodes":
        return shlex.join(["efhc", "status", str(group.folder)])
    config = str((group.folder if group.kind == "run" else run.folder) / "config.toml")
    if group.kind != "run" or group.is_complete:
        of_study = "" if group.kind == "run" else f"-{run.folder.name[:6]}"  # each run of a study has its own folder
        return shlex.join(["efhc", "run", config, "--out", f"runs/{group.folder.name or 'run'}{of_study}-again"])
    words = [config, "--out", str(group.folder)]
    if (mode := mode_in(group.meta)) is not None:
        netns = ["--netns"] if group.meta.get("netns") is True else []
        return shlex.join(["efhc", "launch", *words, "--mode", mode, *netns, "--resume"])
    store = store_in(group.meta)
    return shlex.join(["efhc", "run", *words, *(["--store", str(store)] if store else []), "--resume"])


def _table(meta: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table in meta.json; an empty one if something else is in its place."""
    table = meta.get(name)
    return table if isinstance(table, dict) else {}


def _kind(run: FoundRun, name: str) -> str:
    """Return a setting in short: its kind, and the numbers and words beside it that are not the defaults."""
    table = run.config.get(name, "")
    if not isinstance(table, dict):
        return str(table)
    kind = str(table.get("kind", "own"))
    defaults = _defaults(name, kind)
    details = [
        f"{key} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in table.items()
        if key != "kind" and not isinstance(value, dict | list) and (key, value) not in defaults
    ]
    return f"{kind} ({', '.join(details)})" if details else kind


@cache
def _defaults(name: str, kind: str) -> list[tuple[str, Any]]:
    """Return the settings of a kind with their defaults. Code that the kind names is not run."""
    family = family_of(Experiment.model_fields[name])
    policy = family.kinds().get(kind) if family else None
    return [] if policy is None else [(key, field.default) for key, field in policy.model_fields.items()]


def _took(meta: Mapping[str, Any]) -> str:
    seconds, sessions = meta.get("wall_seconds"), meta.get("sessions")
    if not isinstance(seconds, int | float) or not seconds > 0 or not math.isfinite(seconds):
        return ""
    count = len(sessions) if isinstance(sessions, list) else 0
    minutes, rest = divmod(round(seconds), 60)
    words = f"{minutes:,} min {rest} s" if minutes else f"{rest} s" if seconds >= 1 else "under 1 s"
    return words + (f" in {count} sessions" if count > 1 else "")
