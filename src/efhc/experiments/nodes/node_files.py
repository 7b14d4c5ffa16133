"""Node files: read NODE.toml, with one clear line for each problem, and write a complete one for `efhc node init`."""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import tomli_w
from pydantic import ValidationError

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import absolute, read_text
from efhc.base.policy import Policy, as_input_error, descriptions
from efhc.base.saving import write_safely
from efhc.core.graph import Graph
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import config_file, flat_settings, load_experiment, parse_override, with_settings
from efhc.experiments.runs.draw import check_weights, draw_network
from efhc.network.topologies import GraphsOverTime
from efhc.runtime.node_settings import Address, NodeSettings
from efhc.runtime.security import authority_files, device_files

FIRST_PORT = 7700
"""Device i listens on this port plus i, by default."""

EXAMPLES: dict[str, Any] = {
    "bandwidth": "measured",
    "data": "samples.npz",
    "listen": "0.0.0.0:7700",
    "limits.send": 1_000_000.0,
    "metrics.port": 9100,
    "record.models_after": [1, 100, 200],
    "record.models_seconds": 10.0,
}
"""Examples of settings without a default."""

NOWHERE = "none"
"""The word in place of an address to listen on."""

OPTIONS = {"experiment": "EXPERIMENT", "device": "--device", "neighbours": "--neighbour", "tls": "--certs"}
"""Settings that `efhc node init` takes as options, because others follow from them."""

KEYS_OF_EXPERIMENTS = Experiment.model_fields.keys() - NodeSettings.model_fields.keys()
"""The settings that an experiment's file has and a node file has not."""


# Reading


def read_node(path: Path, overrides: Iterable[str] = ()) -> NodeSettings:
    """Return the settings of a node file, with `key.sub=value` overrides applied in order. All paths are absolute.

    Relative paths count from the file, those of overrides from the current folder. Raises `InputError` if the file
    cannot be read or a setting cannot be used.
    """
    try:
        tables = tomllib.loads(read_text(path, "node file"))
    except (ValueError, RecursionError) as error:
        given = f"{path} ({error})"
        raise InputError("node file", given, "a TOML file, as `efhc node init` writes it") from None
    if "experiment" not in tables and tables.keys() & KEYS_OF_EXPERIMENTS:
        raise EfhcError(f"{path} is an experiment; `efhc node init {path} --device N` makes a node file")
    folder = path.absolute().parent
    tables = _with_paths({"state": "state"} | tables, lambda name, value: _absolute(name, value, folder))
    return build_node(with_settings(tables, map(_parsed_here, overrides)))


def build_node(tables: Mapping[str, Any]) -> NodeSettings:
    """Return the settings of these tables. Raises `InputError` if one cannot be used."""
    try:
        return NodeSettings.model_validate(dict(tables))
    except ValidationError as error:
        problem = as_input_error(error, NodeSettings, tables)
        if problem.field in KEYS_OF_EXPERIMENTS:
            why = f"change it in the experiment's file, not here. A node has the settings {problem.allowed}."
            raise InputError(problem.field, problem.given, problem.allowed, why) from None
        raise problem from None


def _parsed_here(override: str) -> tuple[str, Any]:
    name, value = parse_override(override)
    return name, _absolute(name, value, Path()) if name in PATHS and isinstance(value, str) else value


def _with_paths(tables: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Return the tables with each path changed by `change(name, path)`."""
    paths = [(name, path) for name, path in flat_settings(tables) if name in PATHS and isinstance(path, str)]
    return with_settings(tables, [(name, change(name, path)) for name, path in paths])


def _absolute(name: str, path: str, folder: Path) -> str:
    """Return where a path leads from a folder."""
    return str(config_file(path) if name == "experiment" and _is_shipped(path, folder) else absolute(path, folder))


def _is_shipped(experiment: str, folder: Path) -> bool:
    """Whether the name of an experiment is that of a file that ships with efhc, and of none in the folder."""
    return not absolute(experiment, folder).exists() and config_file(experiment) != Path(experiment)


def _tables_of(policy: type[Policy]) -> dict[str, type[Policy]]:
    """Return the settings of a policy that are tables, each with the policy whose settings the table holds."""
    kinds = {name: (field.annotation, *get_args(field.annotation)) for name, field in policy.model_fields.items()}
    inner = ((name, one) for name, several in kinds.items() for one in several)
    return {name: one for name, one in inner if isinstance(one, type) and issubclass(one, Policy)}


def _paths_of(policy: type[Policy]) -> set[str]:
    own = {
        name for name, field in policy.model_fields.items() if Path in (field.annotation, *get_args(field.annotation))
    }
    return own.union(*({f"{name}.{path}" for path in _paths_of(one)} for name, one in _tables_of(policy).items()))


PATHS = _paths_of(NodeSettings)
"""The settings that are paths."""


# Writing


class NewNode(NamedTuple):
    """What `efhc node init` wrote."""

    settings: NodeSettings
    experiment: Experiment


def write_new_node(
    path: Path,
    experiment: str,
    device: int,
    *,
    certificates: Path,
    listen: str | None = None,
    neighbours: Iterable[str] = (),
    overrides: Iterable[str] = (),
) -> NewNode:
    """Write a complete node file in which every setting is explained.

    `neighbours` are "1=host:port", or "1" for a device that has to connect by itself; others that the experiment's
    network links to the device get a placeholder for an address. Raises `EfhcError` if the file exists.
    """
    if path.exists():
        raise EfhcError(f"{path} exists already and is not overwritten; remove it, or choose another name with --out")
    loaded = load_experiment(experiment)
    if device >= loaded.devices:
        raise InputError("--device", device, f"0 to {loaded.devices - 1}, the experiment's devices")
    given = [_parsed_here(override) for override in overrides]
    for name, _ in given:
        if option := OPTIONS.get(name.partition(".")[0]):
            raise InputError(name, "an override", f"the option {option}")
    chosen: dict[str, Any] = {
        "experiment": experiment if _is_shipped(experiment, Path()) else str(Path(experiment).absolute()),
        "strategy": next(iter(loaded.strategies)),
        "seed": loaded.seeds[0],
        "device": device,
        "listen": listen or str(Address("0.0.0.0", FIRST_PORT + device)),
        "state": f"state-{device}",
        "tls": tls_table(certificates.absolute(), device),
    }
    if listen == NOWHERE:
        del chosen["listen"]
    chosen = with_settings(chosen, given)
    build_node(chosen)  # so that no file is written that cannot be read
    for name, known in (("strategy", list(loaded.strategies)), ("seed", list(loaded.seeds))):
        if chosen[name] not in known:
            raise InputError(name, chosen[name], f"one of the experiment's: {', '.join(map(str, known))}")
    linked = linked_devices(draw_network(loaded, chosen["seed"]), loaded.devices, loaded.iterations)
    addresses = dict.fromkeys(linked[device], "") | _parsed_neighbours(neighbours)
    folder = path.absolute().parent
    # Paths as the folder of the file sees them: it may be copied to a device as it is.
    chosen = _with_paths(chosen, lambda _, path: os.path.relpath(path, folder) if Path(path).is_absolute() else path)
    text = "\n".join(_file_lines(path.name, loaded.name, chosen, addresses)) + "\n"
    build_node(tomllib.loads(text))
    write_safely(path, text.encode())
    return NewNode(read_node(path), loaded)


def tls_table(certificates: Path, device: int) -> dict[str, str]:
    """Return the table `tls` of a device whose certificate is in a folder as `efhc certs` makes it."""
    authority, own = authority_files(certificates).certificate, device_files(certificates, device)
    return {"authority": str(authority), "certificate": str(own.certificate), "key": str(own.key)}


def linked_devices(network: GraphsOverTime, devices: int, iterations: int) -> list[set[int]]:
    """Return, for each device, all others that G(0), ..., G(iterations - 1) ever link it to."""
    check_weights(network, "nodes")
    codes: set[int] = set()
    previous = None
    for k in range(iterations):
        graph = network.graph(k)
        if graph is not previous:
            previous = graph
            codes.update(graph.codes.tolist())
    return Graph.of(devices, [divmod(code, devices) for code in codes]).neighbours()


def _parsed_neighbours(texts: Iterable[str]) -> dict[int, str | None]:
    """Return the addresses by device; None for a device without one."""
    found: dict[int, str | None] = {}
    for text in texts:
        number, equals, address = text.partition("=")
        if not number.isascii() or not number.isdigit():
            raise InputError("--neighbour", text, "1=host:port, or 1 for a device that connects to this one")
        found[int(number)] = address if equals else None
    return found


def _file_lines(
    file: str, experiment: str, chosen: Mapping[str, Any], addresses: Mapping[int, str | None]
) -> Iterator[str]:
    yield f"# Device {chosen['device']} of the experiment {experiment}: `efhc node {file}` runs it."
    yield "# A line such as `# pace = 0.0` shows a default; remove the # to change it. Paths count from this file."
    yield from _setting_lines(NodeSettings, chosen)
    meanings = descriptions(NodeSettings)
    for name, policy in _tables_of(NodeSettings).items():
        yield from ("", *_comment(meanings[name]))
        if name == "neighbours":
            for device, address in sorted(addresses.items()):
                yield from ("[[neighbours]]", f"device = {device}", _address_line(device, address))
        else:
            yield f"[{name}]"
            yield from _setting_lines(policy, chosen.get(name, {}), f"{name}.")


def _address_line(device: int, address: str | None) -> str:
    """Return the line of a neighbour's address: one that was given, none (None), or one to be changed ("")."""
    if address:
        return f"address = {_toml(address)}"
    # 192.0.2.0/24 is reserved for documents: no machine has such an address.
    placeholder = f"address = {_toml(str(Address(f'192.0.2.{1 + device % 254}', FIRST_PORT + device)))}"
    if address is None:
        return f"# {placeholder}"
    return f"{placeholder}  # CHANGE: where this device listens; without this line, it has to connect by itself"


def _setting_lines(policy: type[Policy], chosen: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yield the settings of a table that are single values: what was chosen, and the defaults as comments."""
    meanings, tables = descriptions(policy), _tables_of(policy)
    for name, field in policy.model_fields.items():
        if name in tables:
            continue
        if not within:
            yield ""
        yield from _comment(meanings[name])
        if name in chosen:
            yield f"{name} = {_toml(chosen[name])}"
        elif field.default is None:
            yield f"# {name} = {_toml(EXAMPLES[within + name])}  # e.g."
        else:
            yield f"# {name} = {_toml(field.default)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 110, initial_indent="# ", subsequent_indent="# ")


def _toml(value: Any) -> str:
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")
