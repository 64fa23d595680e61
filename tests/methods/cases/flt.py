"""Settings of FLT that make its graph and groups matter within three rounds of a tiny federation."""

from fedkin.methods.flt import Flt

CASES = {
    "flt-two": Flt(k=2, graph={"groups": 2}, encoder={"kind": "linear"}),
    "flt-neighbours": Flt(
        average="neighbours", graph={"groups": "ratio", "adjacency": "soft"}, encoder={"kind": "none"}
    ),
    "flt-stale": Flt(stale=True, regroup_every=2, graph={"groups": 3, "cluster": "rows", "gamma": 2.5}),
    "flt-edges-stale": Flt(
        average="neighbours", stale=True, graph={"groups": "gap", "gamma": "gap", "embedding": "pca"}
    ),
    "flt-moments": Flt(
        average="neighbours", signature="moments", graph={"groups": 3, "gamma": 3.0}, stale=True, regroup_every=2
    ),
    "flt-tests": Flt(graph={"groups": "same:0.9", "control": "shuffled"}, regroup_every=1),
    "flt-tuned": Flt(k=2, graph={"groups": 2}, encoder={"fine_tune": 1, "keep": True}, regroup_every=1),
}
