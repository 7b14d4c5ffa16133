"""Network namespaces whose links a test can cut."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from efhc.base.errors import EfhcError
from efhc.experiments.nodes.namespaces import Namespaces, port_of, run

NOWHERE = "02:ef:00:ff:ff:ff"
"""A hardware address that no device has: frames to it vanish in the bridge."""
Fault = Literal["carrier", "silent"]


class FaultyNetwork(Namespaces):
    """Namespaces, with faults."""

    def cut(self, device: int, fault: Fault) -> None:
        """Cut a device off: pull its cable ("carrier"), or drop all its packets ("silent")."""
        if fault == "carrier":
            run(f"ip -n {self.bridge_name} link set {port_of(device)} down")
        else:
            run(f"bridge -n {self.bridge_name} link set dev {port_of(device)} state 0")

    def heal(self, device: int) -> None:
        """Undo `cut`."""
        run(f"ip -n {self.bridge_name} link set {port_of(device)} up")
        run(f"bridge -n {self.bridge_name} link set dev {port_of(device)} state 3")

    def cut_link(self, one: int, other: int, *, one_way: bool = False) -> None:
        """Drop all packets between two devices silently, while both reach all others.

        With `one_way`, only the packets of `one` are dropped.
        """
        for here, there in ((one, other), (other, one))[: 1 if one_way else 2]:
            where = f"{self.address(there)} lladdr {NOWHERE} dev eth0 nud permanent"
            run(f"ip -n {self.name(here)} neighbour replace {where}")

    def heal_link(self, one: int, other: int) -> None:
        """Undo `cut_link`."""
        for here, there in ((one, other), (other, one)):
            with suppress(EfhcError):  # it was not cut
                run(f"ip -n {self.name(here)} neighbour delete {self.address(there)} dev eth0")
