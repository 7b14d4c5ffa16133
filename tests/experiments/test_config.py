from __future__ import annotations

import tomllib

import networkx as nx
import numpy as np
import pytest

import efhc
from efhc.base.errors import EfhcError, InputError
from efhc.core.randomness import Randomness
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    build_experiment,
    flat_settings,
    load_experiment,
    to_toml,
    with_overrides,
)


def problem_with(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        build_experiment(with_overrides({}, overrides))
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("network.raduis=3", ["network.raduis", "did you mean 'radius'?", "Use "]),
        ("netwrok.radius=3", ["netwrok", "did you mean 'network'?"]),
        ("strategies.EF-HC.q=1", ["strategies.EF-HC.q", "no such key", "kind, r"]),
        ("strategies.zt.kind=ztt", ["strategies.zt.kind", "'ztt' (did you mean 'zt'?)"]),
        ("network.kind=geometrik", ["network.kind", "did you mean 'geometric'?", "ring"]),
        ("iterations=many", ["iterations", "'many'", "a whole number"]),
        ('iterations="100"', ["iterations", "'100'", "a whole number"]),
        ("iterations=2.5", ["iterations", "2.5", "a whole number"]),
        ("devices=true", ["devices", "cannot use true", "a whole number"]),
        ("devices=0", ["devices", "0", "greater than or equal to 1"]),
        ("batch_size=some", ["batch_size", "'some'", "a whole number or 'full'"]),
        ("batch_size=0", ["batch_size", "greater than or equal to 1 or 'full'"]),
        ("seeds=[1,1]", ["seeds", "[1, 1]", "each entry once"]),
        ("seeds=0,1", ["seeds", "'0,1'", "a list, such as [0,1]"]),
        ("seeds=[]", ["seeds", "[]", "at least 1 entry"]),
        ("network.radius=-1", ["network.radius", "-1", "greater than 0"]),
        ("step_size.initial=nan", ["step_size.initial", "nan", "a finite number"]),
        ("data.standardize=3", ["data.standardize", "3", "true or false or 'features' or 'minmax' or a table"]),
        ('bandwidths={kind="list",values=[5, 0]}', ["bandwidths.values.1", "0", "greater than 0"]),
        ('bandwidths={kind="list",values=[5, -2]}', ["bandwidths.values.1", "-2", "greater than 0"]),
        ("bandwidths.kind=csv", ["bandwidths.path", "required"]),
        ('network={kind="waypoint",fastest=0.001}', ["network", "must not be below slowest"]),
        ("strategies.mine.r=3", ["strategies.mine", "a table with a kind"]),
        ("strategies.EFHC.r=5", ["strategies.EFHC", "did you mean 'EF-HC'?", "kind: ef-hc, gt, zt"]),
        ("step_size=0.1", ["such as step_size.kind=constant step_size.value=0.1"]),
        ("threshold_decay=1", ["such as threshold_decay.kind=constant threshold_decay.value=1"]),
        ("partition=idd", ["partition.kind", "'idd' (did you mean 'iid'?)"]),
        ("network=3", ["network", "3", "a table with a kind"]),
        ("seeds=[9223372036854775808]", ["seeds.0", "less than 9223372036854775808"]),
        ("seeds=[-1]", ["seeds.0", "-1", "greater than or equal to 0."]),
        ("strategies={}", ["strategies", "at least 1 entry"]),
        ("devices=10000000000000", ["devices", "less than or equal to"]),
        ("bandwidths.nominal=1e308", ["bandwidths.nominal", "less than or equal to"]),
        ("nonsense", ["override", "'nonsense'", "KEY=VALUE"]),
        ("devices.kind=3", ["devices.kind", "devices has no settings of its own"]),
    ],
)
def test_a_bad_value_is_one_line_with_field_given_and_allowed(override, parts):
    text = problem_with("devices=10", override)
    for part in parts:
        assert part in text + "\n"


@pytest.mark.parametrize(
    ("metric", "parts"),
    [
        ("mine={better='higher'}", ["model.metrics.mine.function:"]),
        ("mine={function='a.py:f',better='up'}", ["model.metrics.mine.better:", "'higher' or 'lower'"]),
        ("Mine={function='a.py:f',better='up'}", ["model.metrics.Mine.better:"]),
        ("Mine={function='a.py:f',better='higher'}", ["model.metrics:", "'Mine'", "small letters"]),
    ],
)
def test_a_wrong_metric_is_named(metric, parts):
    text = problem_with("model.kind=mlp", f"model.metrics={{{metric}}}")
    for part in parts:
        assert part in text


def test_several_problems_are_counted():
    assert "There are 9 more problems" in problem_with("model.kind=mlp", f"model.class_weights={[-1] * 10}")
    assert "There is 1 more problem" in problem_with("devices=0", "iterations=0")


def test_the_complete_config_reads_back_the_same():
    experiment = build_experiment(
        with_overrides(
            {},
            [
                "network.kind=random-links",
                "network.topology.kind=grid",
                "bandwidths.kind=beta",
                "partition.kind=dirichlet",
                "model.kind=softmax",
                "initial_models.kind=shared",
                "threshold_decay.kind=constant",
                "strategies.RG.probability=0.25",
                "data.standardize={mean=0.5, std=2}",
            ],
        )
    )
    text = to_toml(experiment)
    assert build_experiment(tomllib.loads(text)) == experiment
    assert experiment.strategies["RG"] == efhc.RandomizedGossip(probability=0.25)
    assert experiment.network == efhc.RandomLinks(topology=efhc.Grid())


def test_an_empty_file_is_the_default_and_says_everything(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    assert load_experiment(tmp_path / "empty.toml") == Experiment(name="empty")
    written = tomllib.loads(to_toml(Experiment()))
    assert set(written) == set(Experiment.model_fields) - {
        "early_stopping",
        "threshold_decay",
        "test_samples",
        "validation",
        "keep_models_every",
        "measure",
    }  # None


def test_changing_a_kind_resets_its_table():
    tables = {"network": {"kind": "erdos-renyi", "probability": 0.9, "attempts": 3}}
    assert with_overrides(tables, ["network.kind=geometric"])["network"] == {"kind": "geometric"}
    assert with_overrides(tables, ["network.kind=erdos-renyi"]) == tables
    assert tables["network"]["probability"] == 0.9  # the file's own tables are not touched


def test_an_override_changes_one_default_strategy_and_leaves_the_others():
    strategies = build_experiment(with_overrides({}, ["strategies.EF-HC.r=7"])).strategies
    assert strategies["EF-HC"] == efhc.EventTriggered(r=7.0)
    assert list(strategies) == ["EF-HC", "GT", "ZT", "RG"]


def test_a_bare_word_is_a_kind():
    experiment = build_experiment(with_overrides({}, ["network=ring", "partition=iid", "strategies.ZT=zt"]))
    assert experiment.network == efhc.Ring()
    assert experiment.partition == efhc.IID()
    assert experiment.strategies["ZT"] == efhc.ZeroThreshold()


def test_settings_have_dotted_keys():
    tables = {"a": 1, "b": {"c": [2], "d": {"e": "f"}, "none": {}}}
    assert dict(flat_settings(tables)) == {"a": 1, "b.c": [2], "b.d.e": "f"}
    assert dict(flat_settings("ring")) == {"kind": "ring"}


def test_an_override_is_one_value():
    assert with_overrides({}, ["name=a\niterations=7"])["name"] == "a\niterations=7"
    assert with_overrides({}, ["name=" + "9" * 5000])["name"] == "9" * 5000


@pytest.mark.parametrize("fields", [{"network": efhc.Ring}, {"strategies": {"ZT": efhc.ZeroThreshold}}, {"data": [1]}])
def test_a_class_or_a_list_in_place_of_an_object_is_refused(fields):
    with pytest.raises(InputError, match="a table with a kind"):
        build_experiment(fields)


def test_paths_count_from_the_config_file_and_overrides_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.toml").write_text('[network]\nkind = "edge-list"\npath = "links.txt"\n')
    assert load_experiment(tmp_path / "sub" / "e.toml").network.path == tmp_path / "sub" / "links.txt"
    monkeypatch.chdir(tmp_path)
    assert load_experiment(tmp_path / "sub" / "e.toml", ["network.path=here.txt"]).network.path == tmp_path / "here.txt"


def test_a_path_in_the_home_of_nobody_is_left_as_it_is():
    changed = with_overrides({}, ["data.kind=npz", "data.path=~nobody-of-that-name/x.npz"])
    assert changed["data"]["path"].endswith("~nobody-of-that-name/x.npz")


def test_files_that_are_no_config_are_one_line(tmp_path):
    (tmp_path / "bad.toml").write_text("devices = = 3")
    for name in ("bad.toml", "absent.toml"):
        with pytest.raises(InputError, match="config file") as caught:
            load_experiment(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_objects_made_in_python_run_but_are_not_written(tmp_path):
    experiment = build_experiment({"step_size": lambda k: 0.1, "strategies": {"ZT": efhc.ZeroThreshold()}})
    assert experiment.step_size(3) == 0.1
    with pytest.raises(EfhcError, match="step_size: a function made in Python"):
        to_toml(experiment)
    rng = np.random.default_rng(0)
    arrays = efhc.Dataset(rng.normal(size=(40, 3)), np.arange(40) % 4, rng.normal(size=(8, 3)), np.arange(8) % 4)
    with pytest.raises(EfhcError, match="data: a Dataset made in Python"):
        to_toml(build_experiment({"data": arrays}))


# What Python users pass


def test_numpy_numbers_one_seed_graphs_and_lists_are_accepted():
    experiment = build_experiment(
        {
            "devices": np.int64(3),
            "iterations": np.int32(7),
            "seeds": 4,
            "network": nx.path_graph(3),
            "bandwidths": [1.0, 2.0, 4.0],
            "step_size": efhc.Constant(value=np.float64(0.5)),
            "exchange_at_start": np.True_,
        }
    )
    assert (experiment.devices, experiment.iterations, experiment.seeds) == (3, 7, (4,))
    assert experiment.network.graph(3, Randomness(0)).links.tolist() == [[0, 1], [1, 2]]
    assert experiment.bandwidths == efhc.GivenBandwidths(values=(1.0, 2.0, 4.0))
    assert build_experiment(tomllib.loads(to_toml(experiment))) == experiment
    assert build_experiment({"seeds": np.arange(3)}).seeds == build_experiment({"seeds": range(3)}).seeds == (0, 1, 2)
    assert build_experiment({"bandwidths": np.ones(2)}).bandwidths.values == (1.0, 1.0)
    for wrong in ({"seeds": True}, {"devices": np.float64(3.5)}):
        with pytest.raises(InputError):
            build_experiment(wrong)


def test_a_graph_with_names_is_numbered_in_its_order_and_has_a_node_per_device():
    network = build_experiment({"network": nx.Graph([("a", "b"), ("b", "c")])}).network
    assert network.links == ((0, 1), (1, 2))
    with pytest.raises(InputError, match="nodes"):
        network.graph(4, Randomness(0))
    with pytest.raises(InputError, match="two different devices"):
        build_experiment({"network": {"kind": "links", "links": [[0, 3]]}}).network.graph(3, Randomness(0))


def test_the_config_shows_settings_without_a_value_as_comments():
    experiment = build_experiment({})
    text = to_toml(experiment, show_none=True)
    assert tomllib.loads(text) == tomllib.loads(to_toml(experiment))
    lines = text.splitlines()
    for name in ("test_samples", "validation", "keep_models_every", "measure", "threshold_decay", "probability"):
        assert f"# {name} = (none)" in lines
    assert lines.index("# probability = (none)") > lines.index("[strategies.RG]")


@pytest.mark.parametrize("initial", [1e-46, 1e-300])
def test_a_step_size_that_is_zero_in_the_precision_of_the_run_is_refused(initial):
    with pytest.raises(InputError) as caught:
        build_experiment({"step_size": {"initial": initial}})
    assert caught.value.field == "step_size"
    assert "0 in float32" in str(caught.value)
    assert build_experiment({"step_size": {"initial": initial}, "precision": "float64"})
