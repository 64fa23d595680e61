"""One file per algorithm, named as in its paper."""

from __future__ import annotations

from fedkin.flow import PeerMethod, ServerMethod
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local import Local
from fedkin.methods.sfmtl_graph import SfmtlGraph

__all__ = ["METHODS", "FedAvg", "Local", "SfmtlGraph"]

METHODS: dict[str, type[ServerMethod] | type[PeerMethod]] = {
    method.name: method for method in (Local, FedAvg, SfmtlGraph)
}
