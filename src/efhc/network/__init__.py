"""Which devices are linked, and how fast they send: topologies, graphs over time, bandwidths.

A network is a topology, which stays as it is, or one of the ways in which links change over time.
"""

from __future__ import annotations

from typing import Annotated

from efhc.base.registry import Family
from efhc.network.bandwidths import AnyBandwidths
from efhc.network.topologies import AnyTopology, Network, given_links

__all__ = ["AnyBandwidths", "AnyNetwork", "AnyTopology"]

NETWORKS = Family(
    Network,
    ("efhc.network",),
    ("over_time",),
    default="geometric",
    from_python=given_links,
    python_types=("_HasEdges",),  # a graph of networkx
)
AnyNetwork = Annotated[Network, NETWORKS]
