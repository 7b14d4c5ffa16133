"""Checks of an installation."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.metadata import packages_distributions, version
from shutil import which
from typing import Literal, NamedTuple

from efhc.base.errors import EfhcError
from efhc.base.extras import EXTRAS, how_to_install, importing
from efhc.drivers.agreement import difference_from_reference
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.provenance import machine, provenance
from efhc.learning.data import ARCHIVES
from efhc.learning.data.archives import cache_folder
from efhc.network.changing import RandomLinks


class DoctorCheck(NamedTuple):
    """One line of `efhc doctor`."""

    name: str
    state: Literal["ok", "missing", "bad"]
    """`missing` is something that only some commands need."""
    found: str


def checks(extras: Iterable[str] = tuple(EXTRAS)) -> Iterator[DoctorCheck]:
    """Check versions, extras, what nodes need, machine, data, and that the engine computes what the paper says."""
    yield DoctorCheck("Python", "ok" if sys.version_info >= (3, 11) else "bad", sys.version.split()[0])
    optional = {extra.module for extra in EXTRAS.values()}
    for name, found in provenance()["versions"].items():
        if name not in {"python", *optional}:
            yield DoctorCheck(name, "ok", found)
    for name in extras:
        yield check_extra(name)
    yield from check_node(most_open_files())
    facts = machine()
    memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB" if facts["memory_bytes"] else "unknown"
    yield DoctorCheck("machine", "ok", f"{facts['cores']} cores, {memory}, {facts['system']}")
    existing = next(folder for folder in (cache_folder(), *cache_folder().parents) if folder.exists())
    yield DoctorCheck("cache", "ok" if os.access(existing, os.W_OK) else "bad", str(cache_folder()))
    for archive in ARCHIVES.values():
        place = archive.find()
        missing = f"not on this machine; {archive.remedy}"
        yield DoctorCheck(archive.name, "ok" if place else "missing", str(place[1]) if place else missing)
    difference = engine_difference()
    words = f"differs from Alg. 1 in plain loops by at most {difference:.1e}"
    yield DoctorCheck("driver", "ok" if difference < 1e-12 else "bad", words)


def check_extra(name: str) -> DoctorCheck:
    """Import the package of an extra: it is there, or missing, or broken."""
    extra, title = EXTRAS[name], f"efhc[{name}]"
    if not extra.is_installed():
        return DoctorCheck(title, "missing", f"{extra.package}, for {extra.purpose}: {how_to_install(name)}")
    try:
        with importing(name):
            import_module(extra.module)
    except EfhcError as error:
        return DoctorCheck(title, "bad", str(error))
    installed_as = packages_distributions().get(extra.module, ())  # mlflow-skinny, for example
    number = version(installed_as[0]) if installed_as else "of unknown version"
    return DoctorCheck(title, "ok", f"{extra.package} {number}, for {extra.purpose}")


FEW_FILES = 256
"""A limit of open files that is too low for a node with many neighbours, which holds a socket for each."""
NETNS_TOOLS = ("ip", "tc")
"""What `efhc launch --netns` calls."""


def check_node(files: int | None, find: Callable[[str], str | None] = which) -> Iterator[DoctorCheck]:
    """Check what `efhc node` and `efhc launch` need besides certificates: TLS 1.3, open files, tools for namespaces.

    `files` is the number of files that a process may have open, None for any number; `find` looks for a command.
    """
    yield DoctorCheck("TLS 1.3", "ok" if ssl.HAS_TLSv1_3 else "bad", f"{ssl.OPENSSL_VERSION}, for efhc node")
    if files is not None:
        advice = "" if files >= FEW_FILES else "; raise it with ulimit -n, or LimitNOFILE= of systemd"
        yield DoctorCheck("open files", "ok" if files >= FEW_FILES else "missing", f"at most {files} at once{advice}")
    missing = [tool for tool in NETNS_TOOLS if find(tool) is None]
    found = (
        f"{', '.join(missing)} of iproute2, for efhc launch --netns" if missing else "ip, tc, for efhc launch --netns"
    )
    yield DoctorCheck("namespaces", "missing" if missing else "ok", found)


def most_open_files() -> int | None:
    """Return how many files a process may have open; None where there is no such limit."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def engine_difference(iterations: int = 20) -> float:
    """Return how far the engine ends from `reference.py` on failing links; infinite if it fired or used others."""
    experiment = Experiment(precision="float64", network=RandomLinks())
    scenario = draw_scenario(experiment, load_data(experiment), seed=0)
    return difference_from_reference(scenario, experiment.strategies["EF-HC"], iterations)
