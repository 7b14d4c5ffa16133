"""What is released: one version everywhere, an sdist from which a whole wheel can be made, and a wheel that works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_last_release_or_one_in_development_after_it():
    """The version is in the key of a run, so code whose numbers may differ from a release must not have its version."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = (ROOT / "CHANGELOG.md").read_text()
    released, version = re.findall(r"^## \[(\d[^]]*)\]", changes, re.MULTILINE)[0], Version(PROJECT["version"])
    assert citation["version"] == released
    assert version.is_devrelease == ("\n### " in changes.split(f"## [{released}]")[0])
    assert version > Version(released) if version.is_devrelease else version == Version(released)


def test_every_extra_is_explained():
    page = (ROOT / "docs" / "install.md").read_text()
    for extra in PROJECT["optional-dependencies"]:
        assert extra == "dev" or f"`[{extra}]`" in page


def test_every_dependency_has_a_reason():
    reasons = (ROOT / "CONTRIBUTING.md").read_text()
    wanted = [*PROJECT["dependencies"], *(one for some in PROJECT["optional-dependencies"].values() for one in some)]
    for requirement in wanted:
        name = re.match(r"[\w-]+", requirement)[0]
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reasons), name


def test_issue_templates_are_valid():
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(template.read_text())
        if template.stem != "config":
            assert {"name", "description", "body"} <= set(form)
            assert all(field["attributes"]["label"] for field in form["body"])


def run(*words: object, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, into: Path) -> Path:
    """Build without a network: hatchling is one of the packages for development."""
    path = str(Path(find_spec("hatchling").origin).parents[1])
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", into, cwd=source, PYTHONPATH=path)
    (made,) = into.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was made from the sdist, as packagers do."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: it comes with the extra [dev]")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(build("sdist", ROOT, folder / "sdist")) as sdist:
        sdist.extractall(folder, filter="data")
    return build("wheel", folder / f"efhc-{PROJECT['version']}", folder / "wheel")


@pytest.mark.slow
def test_the_wheel_holds_all_that_is_not_python(wheel: Path):
    held = set(ZipFile(wheel).namelist())
    package = ROOT / "src" / "efhc"
    expected = {f"efhc/{one.relative_to(package)}" for one in package.rglob("*") if one.is_file()}
    expected |= {f"efhc/examples/{one.relative_to(ROOT / 'examples')}" for one in (ROOT / "examples").rglob("*.*")}
    expected = {one for one in expected if "__pycache__" not in one and ".ipynb_checkpoints" not in one}
    assert not expected - held
    assert {"efhc/py.typed", "efhc/__init__.pyi", "efhc/presets/fig2a.toml"} <= held
    assert not [one for one in held if one.startswith(("tests/", "docs/"))]
    (metadata,) = [one for one in held if one.endswith(".dist-info/METADATA")]
    assert f"Version: {PROJECT['version']}\n" in ZipFile(wheel).read(metadata).decode()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with this wheel and, by path, with the packages it depends on."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=folder)
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(purelib) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_works_where_there_is_no_checkout(installed: Path, tmp_path: Path):
    told = "import json, efhc; print(json.dumps([efhc.__version__, efhc.__path__[0]]))"
    version, home = json.loads(run(installed / "python", "-c", told, cwd=tmp_path))
    assert version == PROJECT["version"]
    assert Path(home).is_relative_to(installed.parent)
    assert "fig2a" in run(installed / "efhc", "reproduce", "list", cwd=tmp_path)
    example = Path(home) / "examples" / "own-strategy.toml"
    run(installed / "efhc", "run", example, "iterations=20", "--out", "runs/own", cwd=tmp_path)
    assert [*(tmp_path / "runs" / "own").glob("runs/*/metrics.parquet")]
    assert (tmp_path / "runs" / "own" / "figures" / "comparison.png").is_file()
