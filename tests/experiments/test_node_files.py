"""Node files: what is written can be read, what is wrong is one line, and paths lead where the user meant."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import efhc
from efhc.base.errors import EfhcError, InputError
from efhc.base.policy import descriptions
from efhc.experiments.nodes.node_files import (
    EXAMPLES,
    PATHS,
    linked_devices,
    read_node,
    write_new_node,
)
from efhc.runtime.node_settings import Limits, Metrics, Neighbour, NodeSettings, RecordingSettings, Tls

HALL = 'name = "hall"\ndevices = 4\nseeds = [0, 1]\niterations = 30\n[network]\nkind = "complete"\n'


@pytest.fixture
def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hall.toml").write_text(HALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*overrides: str, out: str = "device-3.toml", device: int = 3, **more: object) -> NodeSettings:
    options: dict[str, object] = {"certificates": Path("certs"), "overrides": overrides} | more
    return write_new_node(Path(out), "hall.toml", device, **options).settings


# Writing


def test_what_is_written_is_read_back(hall: Path):
    settings = write("limits.norm=5", "pace=0.25", neighbours=["1", "2=radio-2:7700"], listen="[::]:7710")
    assert settings == read_node(Path("device-3.toml"))
    assert settings == NodeSettings(
        experiment=hall / "hall.toml",
        strategy="EF-HC",
        seed=0,
        device=3,
        listen="[::]:7710",
        neighbours=(
            Neighbour(device=0, address="192.0.2.1:7700"),
            Neighbour(device=1),
            Neighbour(device=2, address="radio-2:7700"),
        ),
        state=hall / "state-3",
        pace=0.25,
        tls=Tls(
            authority=hall / "certs" / "authority.pem",
            certificate=hall / "certs" / "device-3.pem",
            key=hall / "certs" / "device-3.key",
        ),
        limits=Limits(norm=5),
    )


def test_every_setting_is_there_with_its_explanation_and_its_default(hall: Path):
    write()
    text = (hall / "device-3.toml").read_text()
    words = " ".join(line.removeprefix("# ") for line in text.splitlines())
    for policy in (NodeSettings, Tls, Limits, Metrics, RecordingSettings):
        for name in policy.model_fields:
            assert " ".join(descriptions(policy)[name].split()) in words, name
            if name in ("neighbours", "tls", "limits", "metrics", "record"):
                assert re.search(rf"^\[+{name}\]+$", text, re.MULTILINE)
            else:
                assert re.search(rf"^(# )?{name} = ", text, re.MULTILINE), name


def test_defaults_in_comments_are_the_defaults(hall: Path):
    written = write()
    text = re.sub(r"^# (\w+ = )", r"\1", (hall / "device-3.toml").read_text(), flags=re.MULTILINE)
    (hall / "all.toml").write_text(text)
    every = read_node(Path("all.toml")).model_dump()
    for name in EXAMPLES:  # only they differ
        table, _, key = name.rpartition(".")
        (every[table] if table else every)[key] = (written.model_dump()[table] if table else written.model_dump())[key]
    assert every == written.model_dump()


def test_addresses_to_change_are_marked(hall: Path):
    write(neighbours=["1=10.0.0.1:7700", "2"])
    marked = [line for line in (hall / "device-3.toml").read_text().splitlines() if "CHANGE" in line]
    assert len(marked) == 1
    assert marked[0].startswith('address = "192.0.2.1:7700"')


def test_paths_are_relative_so_that_the_folder_can_be_moved(hall: Path):
    write("data=own/samples.npz")
    shutil.copytree(hall, hall / "moved")
    moved = read_node(Path("moved/device-3.toml"))
    assert moved.experiment == hall / "moved" / "hall.toml"
    assert moved.data == hall / "moved" / "own" / "samples.npz"
    assert moved.tls is not None
    assert moved.tls.key == hall / "moved" / "certs" / "device-3.key"


@pytest.mark.parametrize("name", ["fig2a", "examples/wall-clock.toml"])
def test_an_experiment_that_ships_with_efhc(hall: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    from efhc.experiments.config import files

    monkeypatch.setattr(files, "EXAMPLES", Path(__file__).parents[2] / "examples")
    settings, _ = write_new_node(Path("node.toml"), name, 0, certificates=Path("certs"))
    assert f'experiment = "{name}"' in (hall / "node.toml").read_text()
    assert efhc.load_experiment(settings.experiment) == efhc.load_experiment(name)


def test_nothing_is_overwritten_and_nothing_bad_is_written(hall: Path):
    write()
    with pytest.raises(EfhcError, match=r"device-3\.toml exists already"):
        write()
    for overrides, options, field in (
        (["pcae=1"], {}, "pcae"),
        (["pace=-1"], {}, "pace"),
        (["seed=7"], {}, "seed"),
        (["device=2"], {}, "device"),
        (["neighbours=[]"], {}, "neighbours"),
        ([], {"device": 4}, "--device"),
        ([], {"neighbours": ["x=host:1"]}, "--neighbour"),
        ([], {"neighbours": ["1=nowhere"]}, "neighbours.1.address"),
        ([], {"neighbours": ["3=host:1"]}, "neighbours"),
        ([], {"listen": "nowhere"}, "listen"),
        ([], {"listen": "none", "neighbours": ["0=a:1", "1=b:2", "2"]}, "neighbours"),
    ):
        with pytest.raises(InputError) as raised:
            write(*overrides, out="other.toml", **options)
        assert raised.value.field == field
    assert sorted(path.name for path in hall.iterdir()) == ["device-3.toml", "hall.toml"]
    assert write(listen="none", neighbours=["0=a:1", "1=b:2", "2=c:3"], out="other.toml").listen is None


def test_neighbours_are_those_of_all_iterations():
    experiment = efhc.Experiment(devices=8, iterations=40, network=efhc.RandomLinks(up_probability=0.1))
    network = experiment.network.over_time(8, efhc.core.randomness.Randomness(1))
    union = [set().union(*(network.graph(k).neighbours()[i] for k in range(40))) for i in range(8)]
    assert linked_devices(network, 8, 40) == union
    assert union != network.graph(0).neighbours()


# Reading


MINIMAL = 'experiment = "hall.toml"\ndevice = 0\n'


def node(folder: Path, text: str) -> Path:
    (folder / "node.toml").write_text(text)
    return folder / "node.toml"


def test_paths_count_from_the_file_and_those_of_overrides_from_the_current_folder(hall: Path):
    (hall / "sub").mkdir()
    file = node(hall / "sub", MINIMAL + 'data = "own.npz"\n[tls]\nauthority = "/a"\ncertificate = "b"\nkey = "c"\n')
    settings = read_node(file, ["data=mine.npz", "tls.key=k"])
    assert settings.experiment == hall / "sub" / "hall.toml"
    assert settings.state == hall / "sub" / "state"
    assert settings.data == hall / "mine.npz"
    assert settings.tls == Tls(authority=Path("/a"), certificate=hall / "sub" / "b", key=hall / "k")
    assert {"experiment", "data", "state", "tls.authority", "tls.certificate", "tls.key"} == PATHS


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("devcie = 3\n", "devcie"),
        ("[limits]\nnrom = 3\n", "limits.nrom"),
        ('listen = "a:1"\n[[neighbours]]\ndevce = 3\n', "neighbours.0.device"),
        ('[[neighbours]]\ndevice = 1\naddress = "a"\n', "neighbours.0.address"),
        ('[[neighbours]]\ndevice = 0\naddress = "a:1"\n', "neighbours"),
        ('[[neighbours]]\ndevice = 1\naddress = "a:1"\n' * 2, "neighbours"),
        ("[[neighbours]]\ndevice = 1\n", "neighbours"),
        ('bandwidth = "fast"\n', "bandwidth"),
        ("state = 3\n", "state"),
        ('tls = "certs"\n', "tls"),
        *((f'mode = "lockstep"\n{name} = {value}\n', name) for name, value in (
            ("wire", '"float16"'), ("journal", "false"), ("checkpoint_seconds", "5"), ("down_after", "5"),
            ("stay", "false"), ("limits.patience", "5"), ("limits.journal", "65536"), ("record.gradients", "true"),
        )),
        ("pace = \n", "node file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(hall: Path, text: str, field: str):
    with pytest.raises(InputError) as raised:
        read_node(node(hall, MINIMAL + text))
    assert raised.value.field == field
    assert "\n" not in str(raised.value)


def test_reading_a_file_imports_neither_tables_nor_figures(hall: Path):
    file = node(hall, MINIMAL)
    code = (
        "import sys; from pathlib import Path; from efhc.experiments.nodes.node_files import read_node;"
        f"read_node(Path({str(file)!r}));"
        "print([name for name in ('polars', 'matplotlib', 'cryptography', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
