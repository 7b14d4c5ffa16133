"""Who can hear whom, and how fast: topologies, graphs over time, bandwidths.

A network is a topology, which stays as it is, or one of the ways in which links change over time.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from efhc.base.policy import default_kind, or_your_own
from efhc.network.bandwidths import AnyBandwidths
from efhc.network.changing import RandomLinks, RandomWaypoint, Rotating
from efhc.network.graph_files import EdgeSequenceFile
from efhc.network.topology_kinds import Topologies

__all__ = ["AnyBandwidths", "AnyNetwork"]

AnyNetwork = Annotated[
    Topologies | RandomLinks | RandomWaypoint | Rotating | EdgeSequenceFile,
    Field(discriminator="kind"),
    default_kind("geometric"),
    or_your_own("over_time"),
]
