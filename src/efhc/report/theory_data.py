"""A theory check as plain numbers, for JSON. What is infinite is the word "infinite"; what is not known is null."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np

from efhc.theory.check.assess import StrategyCheck
from efhc.theory.check.outcome import Check
from efhc.theory.check.promises import SeedCheck
from efhc.theory.check.sentences import printed_name, sentence, title
from efhc.theory.connectivity.windows import Connectivity
from efhc.theory.constants.measured import Measured


def as_dict(check: StrategyCheck) -> dict[str, Any]:
    """Return everything that was found of one strategy."""
    promises = check.promises
    whole = {
        "strategy": check.strategy,
        "findings": [check_as_dict(each) for each in check.checks],
        "window": check.window,
        "window_is": check.chosen and check.chosen.kind,
        "curvature": {"L": check.curvature.L, "mu": check.curvature.mu, "known": check.curvature.known},
        "constants": promises and promises.constants._asdict(),
        "step_size_limits": promises and promises.limits._asdict(),
        "asymptotic_gap": promises and promises.gap,
        "iterations": check.iterations,
        "measured": {field.name: check.of_seeds(field.name).mean(axis=0) for field in fields(Measured)},
        "running_gradient_norm": check.running_gradient_norm,
        "error_bound": promises and promises.bound,
        "gradient_bound": promises and promises.gradient_bound,
        "theorem_nonconvex_weights": promises and promises.printed_weights._asdict(),
        "slope": check.slope and check.slope._asdict(),
        "promised_slope": check.promised_slope,
        "seeds": {str(seed): _of_seed(found, check.total_iterations) for seed, found in check.seeds.items()},
    }
    numbers: dict[str, Any] = plain(whole)
    return numbers


def check_as_dict(check: Check) -> dict[str, Any]:
    """One check: its codes and values, its names, and its sentence."""
    return {
        "label": check.label,
        "paper": printed_name(check.label),
        "what": title(check),
        "verdict": check.verdict,
        "detail": sentence(check),
        "iteration": check.iteration,
        "device": check.device,
        "seed": check.seed,
        "subject": check.subject,
        "reason": check.reason,
        "values": dict(check.values),
    }


LENGTHS = {"physical": "B1", "broadcast": "B2", "observed": "B_observed"}
"""The windows of `Connectivity`, as JSON names them."""


def lower_limits(windows: Connectivity, iterations: int) -> list[str]:
    """Return the names of the windows that may be longer than the run of `iterations` shows."""
    names = [LENGTHS[name] for name in windows.lower_limits(iterations)]
    return [*names, "B_promised"] if {"B1", "B2"} & {*names} and math.isfinite(windows.promised) else names


def _of_seed(check: SeedCheck, iterations: int) -> dict[str, Any]:
    windows, contractions = check.connectivity, check.contractions
    return {
        "B1": windows.physical.length,
        "B2": windows.broadcast.length,
        "B_promised": windows.promised,
        "B_sufficient": windows.sufficient,
        "B_observed": windows.observed.length,
        "lower_limits": lower_limits(windows, iterations),
        "rho": contractions and contractions.largest,
        "rho_per_window": contractions and dict(zip(contractions.starts.tolist(), contractions.values, strict=True)),
        "windows": contractions and contractions.of,
        "optimum_within": check.optimum and check.optimum.distance,
        "measured": {field.name: getattr(check.measured, field.name) for field in fields(Measured)},
    }


def plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
