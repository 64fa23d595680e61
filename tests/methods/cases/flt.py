"""Settings of FLT and FLT-same that make graph and groups matter within three rounds of a tiny federation."""

from typing import Any

from fedkin.methods.flt import Flt
from fedkin.methods.flt_same import FltSame

_RAW: dict[str, Any] = {"embedding": "none", "distance": "matching", "gamma": "groups", "cluster": "distances"}
_MLP: dict[str, Any] = {"kind": "mlp", "fine_tune": 0}

CASES = {
    "flt-raw": Flt(graph={"embedding": "none", "gamma": "groups"}),
    "flt-two": Flt(k=2, graph={**_RAW, "groups": 2}, encoder={"kind": "linear", "fine_tune": 0}),
    "flt-neighbours": Flt(average="neighbours", graph={**_RAW, "groups": "ratio", "adjacency": "soft"}),
    "flt-stale": Flt(
        stale=True, regroup_every=2, encoder=_MLP, graph={**_RAW, "groups": 3, "cluster": "rows", "gamma": 2.5}
    ),
    "flt-edges-stale": Flt(
        average="neighbours", stale=True, encoder=_MLP,
        graph={**_RAW, "groups": "gap", "gamma": "gap", "embedding": "pca"},
    ),
    "flt-tests": FltSame(alpha=0.9, graph={"control": "shuffled"}, regroup_every=1),
    "flt-same-edges": FltSame(average="neighbours", stale=True, regroup_every=2, graph={"gamma": 3.0}),
    "flt-tuned": Flt(k=2, graph={**_RAW, "groups": 2}, encoder={"kind": "mlp", "fine_tune": 1}, regroup_every=1),
}  # fmt: skip
