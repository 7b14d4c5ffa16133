"""`efhc data` as a user types it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.learning.data.images import DIGITS_SHA256


@pytest.fixture
def call(command: Callable[..., Any], no_data: None) -> Callable[..., Any]:
    """`efhc data` on a machine without data."""
    return partial(command, "data")


@pytest.fixture
def bad(refused: Callable[..., str], no_data: None) -> Callable[..., str]:
    """The one line that a bad input gets."""
    return partial(refused, "data")


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """A part of CIFAR-10, as a user may have it."""
    folder = tmp_path / "data" / "cifar-10"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3073), dtype=np.uint8)
    pixels[:, 0] = np.arange(40) % 10
    (folder / "data_batch_2.bin").write_bytes(pixels.tobytes())
    (folder / "test_batch.bin").write_bytes(pixels[:10].tobytes())
    return folder


@pytest.fixture
def config(tmp_path: Path, cifar: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('devices = 5\nseeds = [3, 4]\ndata = { kind = "cifar-10", path = "data/cifar-10" }\n')
    return path


def test_list_names_every_data_set_and_where_it_is(call, tmp_path, cifar):
    assert "efhc data fetch cifar-10" in call("list").stdout
    listed = call("list", EFHC_DATA=str(tmp_path / "data")).stdout
    from efhc.learning.data import DATA

    for name in DATA.built_in():
        assert name in listed
    assert "$EFHC_DATA" in listed
    assert "efhc data fetch cifar-10" not in listed  # it is here
    assert "efhc data fetch femnist" not in listed  # there is no download
    assert "preprocess.sh" in listed


def test_digits_ship_with_efhc_and_names_are_suggested(call, bad):
    assert "digits" in call("list").stdout
    assert f"{DIGITS_SHA256}  digits" in call("verify", "digits").stdout
    assert "ships with efhc" in bad("fetch", "digits")
    assert "did you mean 'fashion-mnist'?" in bad("verify", "fashion-mnits")
    assert bad("fetch", "mnist") == "efhc: data set: cannot use 'mnist'. Use fashion-mnist, cifar-10.\n"


def test_a_damaged_file_is_one_line(bad, tmp_path):
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(b"\x1f\x8bnot a gzip file")
    assert re.match(
        r"efhc: files: cannot use .*train-images-idx3-ubyte.gz, truncated or corrupt",
        bad("verify", "fashion-mnist", "--path", tmp_path),
    )


def test_fetch_of_what_cannot_be_downloaded_says_how_to_make_it(bad):
    line = bad("fetch", "femnist")
    assert "./preprocess.sh" in line
    assert "data.path" in line


def test_verify_reports_the_checksums_of_a_copy_of_ones_own(call, bad, tmp_path, cifar):
    for done in (
        call("verify", "cifar-10", EFHC_DATA=str(tmp_path / "data")),
        call("verify", "cifar-10", "--path", cifar),
    ):
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [line.split()[1] for line in lines[:2]] == ["data_batch_2.bin", "test_batch.bin"]
        assert all(len(line.split()[0]) == 64 for line in lines[:2])
        assert "compared with nothing" in lines[2]
        assert lines[3] == "40 training samples, 10 test samples, 10 classes"
    assert "not on this machine" in bad("verify", "cifar-10")
    (cifar / "test_batch.bin").write_bytes(b"short")
    assert "test_batch.bin of 5 bytes" in bad("verify", "cifar-10", "--path", cifar)


def test_verify_says_that_published_checksums_were_compared(call, fashion_files, tmp_path):
    cache = tmp_path / "xdg" / "efhc" / "fashion-mnist"
    cache.parent.mkdir(parents=True)
    cache.symlink_to(fashion_files)
    done = call("verify", "fashion-mnist")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[4] == (
        f"{cache}: 4 files; each SHA-256 equals the one of the published file, which efhc knows"
    )


def test_names_of_classes_do_not_steer_the_terminal(call, tmp_path):
    from PIL import Image

    for part in ("train", "test"):
        for name in ("cat", "\x1b[31m[bold]dog"):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            Image.fromarray(np.eye(4, dtype=np.uint8)).save(tmp_path / "pets" / part / name / "a.png")
    config = tmp_path / "pets.toml"
    config.write_text('devices = 2\ndata = { kind = "image-folder", path = "pets" }\n')
    done = call("show", config)
    assert done.returncode == 0, done.stderr
    assert r"\x1b[31m[bold]dog" in done.stdout
    assert "\x1b" not in done.stdout


def test_show_draws_who_holds_what(call, tmp_path, config):
    done = call("show", config, "partition.labels_per_device=2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "mine-partition.png").read_bytes().startswith(b"\x89PNG")
    assert "mine-partition.png" in done.stdout
    assert "labels partition, seed 3" in done.stdout
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [int(device) for device, *_ in rows] == [0, 1, 2, 3, 4]
    assert {int(labels) for _, _, labels, _ in rows} == {2}
    assert sum(int(samples) for _, samples, _, _ in rows) == 40
    assert "airplane" in done.stdout
    other = call("show", config, "--seed", 4, "--out", "other.svg")
    assert "seed 4" in other.stdout
    assert "<svg" in (tmp_path / "other.svg").read_text()


def test_show_of_a_table_names_its_groups_and_columns(call, tmp_path):
    rows = "".join(f"{n},{n % 7},clinic {n % 6},{'ill' if n % 2 else 'well'},note\n" for n in range(60))
    (tmp_path / "people.csv").write_text("age,pulse,clinic,state,remark\n" + rows)
    config = tmp_path / "people.toml"
    config.write_text(
        'devices = 3\npartition = "groups"\n'
        'data = { kind = "csv", path = "people.csv", label = "state", group = "clinic" }\n'
    )
    done = call("show", config)
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [int(groups) for _, _, groups, _, _ in rows] == [2, 2, 2]
    assert sum(int(samples) for _, samples, *_ in rows) == 48
    assert "ill" in done.stdout
    assert "Features (2): age, pulse" in done.stdout
    assert "Unused columns (1): remark" in done.stdout


def test_show_says_what_became_of_missing_values_and_categories(call, tmp_path):
    rows = [f"{'?' if n == 3 else n},{('red', 'blue')[n % 2]},{n % 3}" for n in range(30)]
    (tmp_path / "things.csv").write_text("\n".join(["size,colour,state", *rows]))
    config = tmp_path / "things.toml"
    config.write_text(
        'devices = 3\npartition = "iid"\n'
        'data = { kind = "csv", path = "things.csv", label = "state", missing = "median", categories = "one-hot" }\n'
    )
    done = call("show", config)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 devices" in done.stdout
    rows = [line.replace("│", " ").split() for line in done.stdout.splitlines()]
    words = {row[0]: row[1:] for row in rows if row}
    assert words["size"][0] == "numbers"
    assert sorted(words["size"][1:3]) == ["0", "1"]
    assert words["colour"] == ["categories", "0", "0", "-", "2:", "blue,", "red", "0"]
    assert "Dropped" not in done.stdout
    assert "Dropped" in call("show", config, "data.missing=drop").stdout


@pytest.mark.parametrize("categories", ["refuse", "one-hot"])
def test_show_warns_of_a_column_split_that_no_setting_names(call, tmp_path, categories):
    rows = [f"{n},{('train', 'test')[n % 5 == 0]},{n % 3}" for n in range(60)]
    (tmp_path / "things.csv").write_text("\n".join(["size,split,state", *rows]))
    config = tmp_path / "things.toml"
    config.write_text(
        'devices = 3\npartition = "iid"\n'
        f'data = {{ kind = "csv", path = "things.csv", label = "state", categories = "{categories}" }}\n'
    )
    assert 'data.split = "split"' in call("show", config).stderr
    done = call("show", config, "data.split=split")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.label=stat", "efhc: data.label: cannot use 'stat', which is no column of"),
        ("data.features=['clinic']", "efhc: data.path: cannot use 'clinic 0', which is no finite number, in line 2"),
        ("devices=50", "efhc: partition.kind: cannot use a partition that leaves device 48 without samples"),
        ("data.test_share=2", "efhc: data.test_share: cannot use 2"),
        ("data.test_path=gone.csv", "efhc: data.test_path: "),
    ],
)
def test_show_refuses_a_table_that_does_not_fit(bad, tmp_path, override, told):
    rows = "".join(f"{n},clinic {n % 6},{'ill' if n % 2 else 'well'}\n" for n in range(60))
    (tmp_path / "people.csv").write_text("age,clinic,state\n" + rows)
    config = tmp_path / "people.toml"
    config.write_text('partition = "iid"\ndata = { kind = "csv", path = "people.csv", label = "state" }\n')
    assert bad("show", config, override).startswith(told)


def test_show_ends_a_long_table(call, config, tmp_path):
    done = call("show", config, "data=digits", "devices=120", "partition=iid", "--out", "many.pdf")
    assert done.returncode == 0, done.stderr
    assert "20 more devices" in done.stdout


def test_show_refusals(bad, config, tmp_path):
    assert "ends in .png" in bad("show", config, "--out", "parts.gif")
    assert "--seed" in bad("show", config, "--seed", -1)
    assert "partition.kind: cannot use writers, because cifar-10" in bad("show", config, "partition=writers")
    assert "data.path" in bad("show", config, "data.path=gone")
    assert not (tmp_path / "runs").exists()


def test_a_run_keeps_the_checksums_of_a_folder(config, tmp_path):
    from efhc.experiments.config.files import load_experiment, read_inputs, to_tables

    experiment = load_experiment(config)
    assert read_inputs(experiment) == {}
    assert to_tables(experiment)["data"]["path"] == str(tmp_path / "data" / "cifar-10")
    assert set(experiment.data.load().sha256) == {"data_batch_2.bin", "test_batch.bin"}
