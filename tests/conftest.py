"""What all tests share, real data as it is found on this machine.

EFHC_REQUIRE_DATA names the data sets without which tests fail instead of being skipped, "all" for all of them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import hypothesis
import pytest

from efhc import cli
from efhc.base.errors import EfhcError
from efhc.base.extras import EXTRAS, how_to_install
from efhc.base.inputs import sha256
from efhc.cli import terminal
from efhc.learning.data import FEMNIST, Dataset
from efhc.learning.data.images import FASHION_MNIST

# A shell that starts tests in the background ignores SIGINT for them, and all processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` takes the quick profile, everything else the full one.
hypothesis.settings.register_profile("full", deadline=None, max_examples=100)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "full"))

BESIDE_THE_REPOSITORY = Path(__file__).parents[2] / "shared" / "data"


def lacking(name: str, reason: str) -> NoReturn:
    if {name, "all"} & set(os.environ.get("EFHC_REQUIRE_DATA", "").split()):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A test that meets a missing extra is skipped, as one that meets missing data is: `make pythons` lacks torch."""
    try:
        return (yield)
    except EfhcError as error:
        for name, extra in EXTRAS.items():
            if how_to_install(name) in str(error) and not extra.is_installed():
                lacking(name, str(error))
        raise


def sample(name: str, folder: str, file: str, checksum: str) -> Path:
    """The folder of the sample whose facts the tests know: in $EFHC_DATA, or where this project keeps it."""
    roots = [*filter(None, [os.environ.get("EFHC_DATA")]), BESIDE_THE_REPOSITORY]
    for found in (Path(root) / folder for root in roots):
        if (found / file).is_file() and sha256((found / file).read_bytes()) == checksum:
            return found.absolute()
    lacking(name, f"the sample {folder} is not on this machine, neither in $EFHC_DATA nor beside the repository")


@pytest.fixture(scope="session")
def fashion_files() -> Path:
    """The folder with the four real files."""
    found = FASHION_MNIST.find()
    if found is None:
        lacking("fashion-mnist", "Fashion-MNIST is not on this machine: install Debian's package dataset-fashion-mnist")
    return found.folder


@pytest.fixture(scope="session")
def femnist_files() -> Path:
    """LEAF's layout: 74 writers, 9,619 training and 2,405 test samples."""
    return sample(
        "femnist", "femnist", "test/all_data_0.json", "f8ac450b5dcdbe16ce55638e04e15ced6bf930b2718b36bacae72d11973e796f"
    )


@pytest.fixture(scope="session")
def femnist(femnist_files: Path) -> Dataset:
    """The sample, read once for all."""
    return FEMNIST(path=femnist_files).load()


@pytest.fixture(scope="session")
def cifar_files() -> Path:
    """CIFAR-10's binary layout: 10,000 training and 2,000 test images, from JPEG files."""
    return sample(
        "cifar-10",
        "cifar-10-batches-bin",
        "test_batch.bin",
        "7922f9d0cca94c15bf793c8dabdf3f01010710ce86590351fd4850f9ec9d4779",
    )


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither $EFHC_DATA nor the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("EFHC_DATA", raising=False)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser, where playwright can drive it."""
    path = Path("/usr/bin/chromium")
    if find_spec("playwright") is None:
        lacking("chromium", "playwright is not installed")
    if not path.exists():
        lacking("chromium", f"there is no {path}: install Debian's package chromium")
    return path


@pytest.fixture
def executed(tmp_path: Path) -> Callable[..., Any]:
    """Execute a notebook in a real kernel, in `tmp_path` or in `folder`; `more` are cells after its own."""
    import nbformat
    from nbclient import NotebookClient

    def execute(notebook: Any, *more: str, folder: Path | None = None) -> Any:
        notebook.cells += [nbformat.v4.new_code_cell(cell) for cell in more]
        resources = {"metadata": {"path": str(folder or tmp_path)}}
        NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
        return notebook

    return execute


CHROMIUM_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def playwright(chromium: Path) -> Iterator[Any]:
    """What drives browsers. While it is there, no test of this module can run an event loop of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Any, chromium: Path) -> Iterator[Any]:
    """The browser of a module."""
    started = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_OPTIONS)
    yield started
    started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which looks for what keeps people from using a page."""
    if find_spec("axe_playwright_python") is None:
        lacking("axe", "axe-playwright-python is not installed")
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


# The command line in this process: a command takes no longer than what it does.


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run `efhc WORDS` in `tmp_path` or in `cwd`, as a shell would; `columns` is the width of the terminal.

    Further keyword arguments are variables of the environment.
    """
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(cli, "debugging", False)

    def call(*words: object, cwd: Path | None = None, columns: int = 120, **variables: str) -> Done:
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(terminal.console, "width", columns)
        monkeypatch.setattr(sys, "argv", ["efhc", *map(str, words)])
        capsys.readouterr()
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                cli.main()
        return Done(end.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def refused(command: Callable[..., Done]) -> Callable[..., str]:
    """The one line that a bad input gets."""

    def call(*words: object, cwd: Path | None = None) -> str:
        done = command(*words, cwd=cwd)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("efhc: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    return call
