"""Methods whose graph, groups and mixing matter within three rounds of a tiny federation, and their other branches."""

from __future__ import annotations

from typing import Any

from fedkin.flow import PeerMethod, ServerMethod
from support import named

_RAW: dict[str, Any] = {"embedding": "none", "distance": "matching", "gamma": "groups", "cluster": "distances"}
_MLP = {"kind": "mlp", "fine_tune": 0}
_SMALL: dict[str, Any] = {"warmup": 1, "hidden": 9, "augment": {"noise": 0.1}}

CASES: dict[str, ServerMethod | PeerMethod] = {
    "pca-km-hc-two": named("pca-km-hc", clusters=2, centres=2, components=3),
    "fedsem-three": named("fedsem", clusters=3, weights="equal"),
    "fedsem-head": named("fedsem", compare="head"),
    "ifca-anew": named("ifca", clusters=3, choose="anew", share="body"),
    "pca-km-hc-same": named("pca-km-hc", clusters="same:0.9", centres=2, components=3),
    "fedsem-same": named("fedsem", clusters="same:0.9"),
    "ifca-same": named("ifca", clusters="same:0.9"),
    "cfl-same": named("cfl", split="same:0.9", after=1),
    "cfl-eager": named("cfl", eps1=2.0, eps2=0.0),
    "cfl-pairs": named("cfl", eps1=1e9, eps2=1e-9, scale="absolute", min_size=2, weights="equal"),
    "flt-raw": named("flt", graph={"embedding": "none", "gamma": "groups"}),
    "flt-two": named("flt", k=2, graph={**_RAW, "groups": 2}, encoder={"kind": "linear", "fine_tune": 0}),
    "flt-neighbours": named("flt", average="neighbours", graph={**_RAW, "groups": "ratio", "adjacency": "soft"}),
    "flt-stale": named(
        "flt", stale=True, regroup_every=2, encoder=_MLP, graph={**_RAW, "groups": 3, "cluster": "rows", "gamma": 2.5}
    ),
    "flt-edges-stale": named(
        "flt", average="neighbours", stale=True, encoder=_MLP,
        graph={**_RAW, "groups": "gap", "gamma": "gap", "embedding": "pca"},
    ),
    "flt-tests": named("flt-same", alpha=0.9, graph={"control": "shuffled"}, regroup_every=1),
    "flt-same-edges": named("flt-same", average="neighbours", stale=True, regroup_every=2, graph={"gamma": 3.0}),
    "flt-tuned": named(
        "flt", k=2, graph={**_RAW, "groups": 2}, encoder={"kind": "mlp", "fine_tune": 1}, regroup_every=1
    ),
    "kin-groups": named("kin", degrees="groups", alpha=0.9, least=0.0),
    "kin-many": named("kin", alpha=0.9, least=0.0, regroup_every=1, weights="equal"),
    "mapl-learned": named("mapl", **_SMALL, graph={"probe": 0.3}),
    "mapl-paper": named("mapl", **_SMALL, absent=1.0, graph={"step": "paper"}),
    "mapl-released": named("mapl", **_SMALL, variant="released", temperature=100.0, graph={"step": "released"}),
    "mapl-plus-learned": named("mapl-plus", **_SMALL, graph={"probe": 0.3}),
    "fedsim-own": named("fedsim", predict="own", weights="equal"),
    "fedclassavg-shared": named("fedclassavg", predict="shared", rho=1.0, augment={"noise": 0.1}),
    "fedproto-head": named("fedproto", predict="head", lam=2.0),
    "pfedsim-personal": named("pfedsim", warmup=0),
    "pfedsim-mixed": named("pfedsim", warmup=1, predict="mixed", cosine="whole"),
    "dfedavgm-plain": named("dfedavgm", momentum=0.0),
    "fedprox-equal": named("fedprox", mu=1.0, weights="equal"),
    "tfl-strong": named("tfl", eta_lambda=0.3, q=0.5, graph={"every": 1, "vectors": "updates"}),
    "tfl-kl": named("tfl", eta_lambda=0.2, divergence="kl", floor=0.01, graph={"every": 2}),
    "tfl-sampled-losses": named(
        "tfl", eta_lambda=0.3, ask_losses="sampled", graph={"layers": 1, "centrality": "degree"}
    ),
    "tfl-clusters": named("tfl", eta_lambda=0.3, graph={"every": 1, "clusters": 3, "similarity": "l2"}),
    "tfl-no-ascent": named("tfl", eta_lambda=0.0),
    "drfa-strong": named("drfa", gamma=0.05, ask_losses="all"),
    "drfa-no-snapshot": named("drfa", gamma=0.05, snapshot=False),
    "pfedme-strong": named("pfedme", lam=5.0, eta=0.1, inner_steps=2, beta=0.5, weights="samples"),
    "pfedme-global": named("pfedme", eta=0.05, evaluate="global"),
    "fedu-cosine": named("fedu", lam=1.0, graph={"source": "cosine", "layers": 1}),
    "fedu-planted-all": named("fedu", lam=0.5, neighbours="all", graph={"source": "planted"}),
    "fedsr-strong": named("fedsr", l2r=0.05, cmi=0.05, norm="plain", weights="equal"),
}  # fmt: skip
