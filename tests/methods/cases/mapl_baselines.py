"""Settings of MAPL's baselines that all methods' properties are checked for, beside the defaults."""

from __future__ import annotations

from fedkin.flow import PeerMethod, ServerMethod
from fedkin.methods.dfedavgm import DFedAvgM
from fedkin.methods.fedclassavg import FedClassAvg
from fedkin.methods.fedproto import FedProto
from fedkin.methods.fedsim import FedSim
from fedkin.methods.pfedsim import PFedSim

CASES: dict[str, ServerMethod | PeerMethod] = {
    "fedsim-own": FedSim(predict="own", weights="equal"),
    "fedclassavg-shared": FedClassAvg(predict="shared", rho=1.0, augment={"noise": 0.1}),
    "fedproto-head": FedProto(predict="head", lam=2.0),
    "pfedsim-personal": PFedSim(warmup=0),
    "pfedsim-mixed": PFedSim(warmup=1, predict="mixed", cosine="whole"),
    "dfedavgm-plain": DFedAvgM(momentum=0.0),
}
