from __future__ import annotations

import pytest

from efhc.base.errors import EfhcError
from efhc.base.extras import EXTRAS, Extra, importing, require
from efhc.experiments.doctor import check_extra, check_node, checks, most_open_files


def test_this_installation_is_sound():
    found = {check.name: check for check in checks(extras=["tune"])}
    assert {check.state for check in found.values()} <= {"ok", "missing"}
    assert found["efhc[tune]"].found.startswith("Optuna ")
    assert found["driver"].state == "ok"
    assert next(iter(found)) == "Python"


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(EXTRAS, "tune", Extra("no_such_package", "Optuna", "tuning"))
    assert check_extra("tune") == (
        "efhc[tune]",
        "missing",
        "Optuna, for tuning: install the extra [tune] (docs/install.md)",
    )
    with pytest.raises(EfhcError, match=r"^tuning needs Optuna: install the extra \[tune\] \(docs/install.md\)$"):
        require("tune")
    with pytest.raises(EfhcError, match=r"^efhc tune needs Optuna"):
        require("tune", "efhc tune")


@pytest.mark.parametrize("code", ["raise OSError('libtorch.so: not found')", "import no_such_part", "1 / 0"])
def test_a_broken_extra_is_bad_and_one_line(code: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_extra.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(EXTRAS, "deep", Extra("broken_extra", "PyTorch", "a neural network"))
    check = check_extra("deep")
    assert check.state == "bad"
    assert check.found.startswith("PyTorch is installed but cannot be imported (")
    with pytest.raises(EfhcError, match="pip install --force-reinstall broken_extra"), importing("deep"):
        import broken_extra  # noqa: F401


def test_the_extras_are_those_of_the_package():
    from importlib.metadata import metadata

    provided = set(metadata("efhc").get_all("Provides-Extra") or ())
    assert provided - {"dev", "docs"} == set(EXTRAS)


def test_what_nodes_need():
    found = {check.name: check for check in check_node(64, {"ip": "/sbin/ip"}.get)}
    assert found["TLS 1.3"].state == "ok"
    assert found["namespaces"] == ("namespaces", "missing", "tc of iproute2, for efhc launch --netns")
    assert found["open files"].state == "missing"
    assert "ulimit -n" in found["open files"].found
    assert [check.state for check in check_node(1024, "/sbin/{}".format)] == ["ok"] * 3
    assert "open files" not in {check.name for check in check_node(None)}
    assert most_open_files() is None or most_open_files() > 0
