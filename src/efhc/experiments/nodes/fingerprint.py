"""What two nodes must agree on before they exchange models, as short texts by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from efhc.base.errors import EfhcError
from efhc.base.inputs import read_bytes, sha256
from efhc.base.own_code import IN_A_FILE, file_of
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import to_tables
from efhc.runtime.node_messages import WIRE_VERSION
from efhc.runtime.node_settings import NodeSettings

LONGEST = 120
"""Characters up to which a setting is shown whole. A longer one is shown by its beginning and its checksum."""


def fingerprint(
    settings: NodeSettings, experiment: Experiment, strategy: str, seed: int, parameters: int
) -> dict[str, str]:
    """Return what both ends of a link must agree on; nodes in lockstep on more, since they share each iteration."""
    try:
        tables = to_tables(experiment)
    except EfhcError as error:
        raise EfhcError(f"{settings.experiment}: {error}") from None
    agreed = {
        "wire version": str(WIRE_VERSION),
        "mode": settings.mode,
        "devices": str(experiment.devices),
        "seed": str(seed),
        "model": _shown(tables["model"]),
        "parameters": str(parameters),
        "precision": experiment.precision,
        "wire": settings.wire,
        "strategy": _shown(tables["strategies"][strategy]),
        "step_size": _shown(tables["step_size"]),
        "threshold_decay": _shown(tables.get("threshold_decay", tables["step_size"])),
    }
    if settings.mode == "lockstep":
        agreed |= {
            "iterations": str(experiment.iterations),
            "network": _shown(tables["network"]),
            "bandwidths": _shown(tables["bandwidths"]),
            "exchange_at_start": str(experiment.exchange_at_start),
            "checkpoint_every": str(settings.checkpoint_every),
        }
    return agreed


def identity(agreed: dict[str, str], settings: NodeSettings) -> dict[str, str]:
    """Return what a state folder belongs to: what nodes agree on, and the number of the device."""
    changeable = {"wire version", "wire", "checkpoint_every"}
    return {name: value for name, value in agreed.items() if name not in changeable} | {"device": str(settings.device)}


def _shown(setting: Any) -> str:
    text = json.dumps(_without_places(setting), sort_keys=True)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 15]}... {sha256(text.encode())[:10]}"


def _without_places(setting: Any) -> Any:
    """Return a setting with the checksum of each file in place of its folder, which differs between machines."""
    if isinstance(setting, dict):
        return {key: _without_places(value) for key, value in setting.items()}
    if isinstance(setting, list):
        return [_without_places(value) for value in setting]
    if isinstance(setting, str):
        if IN_A_FILE.match(setting) and (file := file_of(setting)):
            return f"{file.name}:{setting.rpartition(':')[2]} {sha256(read_bytes(file))[:10]}"
        if (file := Path(setting)).is_absolute() and file.is_file():
            return f"{file.name} {sha256(read_bytes(file))[:10]}"
    return setting
