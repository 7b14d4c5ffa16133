"""The topologies that a config can name. A new one is added here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from efhc.base.policy import default_kind, or_your_own
from efhc.network.graph_files import EdgeListFile, GraphMLFile
from efhc.network.topologies import Complete, ErdosRenyi, Geometric, Grid, InternetAS, Ring, Star

Topologies = Geometric | ErdosRenyi | InternetAS | Ring | Grid | Star | Complete | EdgeListFile | GraphMLFile

AnyTopology = Annotated[Topologies, Field(discriminator="kind"), default_kind("geometric"), or_your_own("graph")]
