"""The drawings of the page beside its curves: the network, and who fired when. The scripts of live/ draw them.

Nothing here draws: a drawing is plain data, made of lists, strings and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.report.figure_data import Illustration

MAX_BINS = 200
"""Largest number of columns of a raster; more would be thinner than a pixel or two."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A drawing and what stands around it."""

    key: str
    """Unique within the figure, and valid in an HTML id."""
    kind: Literal["network", "raster"]
    title: str
    """Plain text."""
    data: dict[str, Any]
    note: str
    """What a reader needs to know, as plain text."""


def network_drawing(illustration: Illustration) -> Drawing:
    """Return the network at the start of the run."""
    devices = illustration.devices.sort("device").select("device", "bandwidth", "samples", "labels")
    links = _first_links(illustration.network)
    changes = len(illustration.network) - 1
    note = f"{len(devices)} devices, {len(links)} links"
    note += f" at the start; they change at {changes:,} iterations" if changes > 0 else ""
    return Drawing("network", "network", "Network", {"devices": devices.to_dicts(), "links": links}, note)


def raster_drawings(illustration: Illustration) -> list[Drawing]:
    """Return one map of firings per strategy: a row per device, by bandwidth, and a column per bin of iterations."""
    devices = illustration.devices.sort("bandwidth", "device", descending=[True, False])
    rows = devices.select("device", "bandwidth").to_dicts()
    return [
        _raster(f"raster-{n}", strategy, events, rows)
        for n, (strategy, events) in enumerate(illustration.events.items())
    ]


def _raster(key: str, strategy: str, events: pl.DataFrame, rows: list[dict[str, Any]]) -> Drawing:
    shares, width = fired_shares(events, [row["device"] for row in rows])
    ever = sum(map(len, events["fired"].to_list())) / max(1, len(events) * len(rows))
    data = {
        "rows": rows,
        "shares": shares.round(4).tolist(),
        "end": width * shares.shape[1],
        "last": int(events["iteration"].to_numpy().max()),
    }
    return Drawing(key, "raster", strategy, data, f"a device fires in {100 * ever:.3g} % of iterations")


def fired_shares(events: pl.DataFrame, devices: Sequence[int], bins: int = MAX_BINS) -> tuple[Floats, int]:
    """Return the share of each bin's iterations in which each of the `devices` (rows) fired, and the width of a bin.

    Bins are equally wide, except that the last one may be shorter; its share is taken of the iterations that it has.
    """
    iterations = events["iteration"].to_numpy()
    width = -(-(int(iterations.max()) + 1) // bins)
    per_bin = np.bincount(iterations // width)
    row_of = np.empty(max(devices) + 1, int)
    row_of[list(devices)] = np.arange(len(devices))
    fired = events.select("iteration", "fired").explode("fired").drop_nulls()
    counts = np.zeros((len(devices), len(per_bin)))
    np.add.at(counts, (row_of[fired["fired"].to_numpy()], fired["iteration"].to_numpy() // width), 1)
    return counts / per_bin, width


def _first_links(network: pl.DataFrame) -> list[tuple[int, int]]:
    row = network.sort("iteration").row(0, named=True)
    return list(zip(row["link_from"], row["link_to"], strict=True))
