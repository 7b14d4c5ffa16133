"""The registry finds every kind, built in or installed, and errors and schemas name them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from efhc.base.errors import InputError
from efhc.base.policy import Policy, descriptions, family_of, kinds_of
from efhc.core.parts import Strategy
from efhc.experiments.config.experiment import STRATEGIES, Experiment, built_in_kinds
from efhc.experiments.config.files import build_experiment
from efhc.experiments.trackers.tracker import TRACKERS
from efhc.network.changing import OverTopology
from efhc.strategies.paper import ZeroThreshold

FAMILIES = {name: field for name, field in Experiment.model_fields.items() if family_of(field)}


def test_every_part_of_an_experiment_has_a_family_and_its_default_is_one_of_its_kinds():
    assert set(FAMILIES) == {
        "data",
        "partition",
        "model",
        "initial_models",
        "network",
        "bandwidths",
        "step_size",
        "threshold_decay",
        "strategies",
        "driver",
        "log",
    }
    for field in FAMILIES.values():
        family = family_of(field)
        assert family.default in kinds_of(field) or family in (STRATEGIES, TRACKERS)


def test_topologies_are_networks_and_the_other_networks_are_no_topologies():
    networks, topologies = kinds_of(FAMILIES["network"]), kinds_of(OverTopology.model_fields["topology"])
    assert set(topologies) < set(networks)
    sequences = {"base-graph", "one-peer-exponential", "random-peers"}
    changing = {"random-links", "waypoint", "rotating", "edge-sequence"}
    assert set(networks) - set(topologies) == changing | sequences


def test_no_two_kinds_share_a_class_name():
    fields, all_kinds = [*FAMILIES.values()], []
    while fields:
        new = [policy for policy in kinds_of(fields.pop()).values() if policy not in all_kinds]
        all_kinds += new
        fields += [field for policy in new for field in policy.model_fields.values()]
    assert {policy.__name__: policy for policy in all_kinds} == built_in_kinds()
    assert set(built_in_kinds().values()) == set(all_kinds)


def test_classes_elsewhere_do_not_become_kinds():
    class Mine(Strategy):
        kind: Literal["mine"] = "mine"
        thresholds = ZeroThreshold.thresholds

    assert "mine" not in kinds_of(FAMILIES["strategies"])
    assert build_experiment({"strategies": {"a": Mine()}}).strategies["a"] == Mine()


def test_placeholders_are_not_offered():
    assert "not-kept" not in str(Experiment.model_json_schema())


def test_an_unknown_kind_is_compared_with_all_kinds():
    with pytest.raises(InputError, match="did you mean 'waypoint'") as caught:
        build_experiment({"network": "waypiont"})
    assert caught.value.allowed == ", ".join(kinds_of(FAMILIES["network"]))


INSTALLED = '''
from typing import Literal
import numpy as np
import efhc

class Half(efhc.Strategy):
    """Every second device always fires."""
    kind: Literal["half"] = "half"
    share: float = 0.5
    def thresholds(self, k, gamma, bandwidths, coins):
        return np.where(np.arange(len(bandwidths.values)) % 2 == 0, 0.0, np.inf)

class Line(efhc.Topology):
    kind: Literal["line"] = "line"
    def graph(self, devices, randomness):
        return efhc.Graph.of(devices, [(i, i + 1) for i in range(devices - 1)])

default = efhc.Geometric()
'''
USES_IT = """
import pickle, warnings, efhc
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, to_tables, read_inputs
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    e = build_experiment({"strategies": {"h": {"kind": "half", "share": 0.25}}, "network": "line"})
assert pickle.loads(pickle.dumps(e)) == e
print(to_tables(e)["strategies"]["h"], to_tables(e)["network"], read_inputs(e))
print("'half'" in str(Experiment.model_json_schema()), hasattr(efhc, "Half"), [str(one.message) for one in caught])
try:
    build_experiment({"network": "lime"})
except efhc.InputError as error:
    print("did you mean 'line'?" in str(error))
"""


def test_installed_packages_add_kinds_and_broken_ones_are_named(tmp_path: Path):
    (tmp_path / "efhc_half.py").write_text(INSTALLED)
    (tmp_path / "efhc_half-1.0.dist-info").mkdir()
    (tmp_path / "efhc_half-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: efhc-half\nVersion: 1.0\n"
    )
    (tmp_path / "efhc_half-1.0.dist-info" / "entry_points.txt").write_text(
        "[efhc.kinds]\nhalf = efhc_half:Half\nline = efhc_half:Line\nlost = efhc_half:Lost\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USES_IT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == "{'kind': 'half', 'share': 0.25} {'kind': 'line'} {}", done.stderr
    assert lines[1].startswith('True False ["efhc.kinds: efhc_half:Lost cannot be loaded')
    assert lines[2] == "True"


class Described(ZeroThreshold):
    text: str = ""
    """What it
    says."""
    silent: int = 0
    other: float = 0.0
    """Another one."""


class DescribedAnew(Described):
    other: float = 1.0
    """What it is now."""


def test_a_setting_is_described_by_the_docstring_below_it():
    inherited = {"personal": descriptions(ZeroThreshold)["personal"]}
    assert descriptions(Described) == inherited | {"text": "What it\nsays.", "other": "Another one."}
    assert descriptions(DescribedAnew) == inherited | {"text": "What it\nsays.", "other": "What it is now."}
    properties = DescribedAnew.model_json_schema()["properties"]
    assert properties["other"]["description"] == "What it is now."
    assert "description" not in properties["silent"]


def test_a_policy_without_a_source_has_no_descriptions():
    made = type("Made", (Policy,), {"__annotations__": {"number": int}})
    assert descriptions(made) == {}
