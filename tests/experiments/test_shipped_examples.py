"""`examples/NAME.toml` is the file in the current folder, or else the one that was installed with efhc."""

from pathlib import Path

import pytest

from efhc.base.errors import InputError
from efhc.experiments.config import files
from efhc.experiments.config.files import load_experiment


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in a wheel: the examples lie in the package."""
    folder = tmp_path / "site-packages" / "efhc" / "examples"
    folder.mkdir(parents=True)
    (folder / "small.toml").write_text('iterations = 7\ndata = { kind = "npz", path = "mine.npz" }\n')
    monkeypatch.setattr(files, "EXAMPLES", folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def test_an_installed_example_is_found_from_anywhere_and_its_paths_count_from_it(installed: Path):
    experiment = load_experiment("examples/small.toml", ["devices=3"])
    assert (experiment.iterations, experiment.devices) == (7, 3)
    assert experiment.data.path == installed / "mine.npz"


def test_a_file_of_ones_own_comes_first_and_other_names_are_not_guessed(installed: Path):
    Path("examples").mkdir()
    Path("examples/small.toml").write_text("iterations = 8\n")
    assert load_experiment("examples/small.toml").iterations == 8
    for name in ("small.toml", "other/small.toml", "examples/gone.toml", "examples/../examples/small.tom"):
        with pytest.raises(InputError, match="does not exist"):
            load_experiment(name)


def test_every_example_of_the_checkout_goes_into_the_wheel():
    import tomllib

    project = Path(__file__).parents[2]
    settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "examples" in settings["only-include"]
    assert settings["sources"]["examples"] == "efhc/examples"
    assert Path(files.__file__).parents[2] / "examples" == files.EXAMPLES
