"""Facts about a run in words: where it comes from, how long it took, and how to make it again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from efhc.experiments.nodes.launch import mode_in
from efhc.watch.discovery import FoundGroup, FoundRun, store_in


def describe(run: FoundRun | None, group: FoundGroup) -> dict[str, str]:
    """Return facts about a run, or about a set of nodes, by name. Unknown facts are left out."""
    if run is None:
        return {"nodes in": group.folder.name, "made by": "nodes of the network runtime, which answer on their sockets"}
    meta = run.meta
    machine, versions, git = (_table(meta, name) for name in ("machine", "versions", "git"))
    warnings = meta.get("warnings")
    facts = {
        "experiment": run.experiment or str(run.config.get("name", "")),
        "strategy": f"{run.strategy}, seed {run.seed}",
        "devices": f"{run.devices:,}",
        "iterations": f"{run.iterations:,}",
        "data": _kind(run, "data"),
        "partition": _kind(run, "partition"),
        "model": _kind(run, "model"),
        "network": _kind(run, "network"),
        "driver": run.driver,
        "made by": str(group.meta.get("made_by", "")),
        "started": str(meta.get("started", "")),
        "finished": str(meta.get("finished", "")),
        "time": _seconds(meta),
        "machine": ", ".join(
            str(part)
            for part in (machine.get("system"), f"{machine['cores']} cores" if "cores" in machine else None)
            if part
        ),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git": str(git.get("commit", "")),
        "warnings": "; ".join(map(str, warnings)) if isinstance(warnings, list) else "",
        "problem": run.problem or "",
    }
    return {name: fact for name, fact in facts.items() if fact}


def repeat_command(run: FoundRun | None, group: FoundGroup) -> str:
    """Return the command that makes a run again or, if it was stopped, goes on with it."""
    if run is None:
        return shlex.join(["efhc", "status", str(group.folder)])
    config = str(run.folder / "config.toml")
    if group.kind == "run":
        config = str(group.folder / "config.toml")
        if not group.is_complete:
            return shlex.join(["efhc", *_words_to_resume(config, group)])
    return shlex.join(["efhc", "run", config, "--out", f"runs/{group.folder.name or 'run'}-again"])


def _words_to_resume(config: str, group: FoundGroup) -> list[str]:
    """Return the words that follow `efhc` on the command line to go on with an experiment, as it was made so far.

    Of its meta.json, which others may have written, only the mode of its nodes and the place of its store are used.
    """
    if (mode := mode_in(group.meta)) is not None:
        netns = ["--netns"] if group.meta.get("netns") is True else []
        return ["launch", config, "--out", str(group.folder), "--mode", mode, *netns, "--resume"]
    store = store_in(group.meta)
    elsewhere = ["--store", str(store)] if store is not None else []
    return ["run", config, "--out", str(group.folder), *elsewhere, "--resume"]


def _table(meta: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table in meta.json; an empty one if something else is in its place."""
    table = meta.get(name)
    return table if isinstance(table, dict) else {}


def _kind(run: FoundRun, name: str) -> str:
    """Return a setting in short: its kind and the numbers and words beside it."""
    table = run.config.get(name, "")
    if not isinstance(table, dict):
        return str(table)
    details = [f"{key} {value}" for key, value in table.items() if key != "kind" and not isinstance(value, dict | list)]
    kind = str(table.get("kind", "own"))
    return f"{kind} ({', '.join(details)})" if details else kind


def _seconds(meta: Mapping[str, Any]) -> str:
    seconds, sessions = meta.get("wall_seconds"), meta.get("sessions")
    if not isinstance(seconds, int | float) or not seconds > 0 or not math.isfinite(seconds):
        return ""
    count = len(sessions) if isinstance(sessions, list) else 0
    return f"{seconds:,.1f} s" + (f" in {count} sessions" if count > 1 else "")
