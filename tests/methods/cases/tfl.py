"""TFL, its baselines, and pFedMe and FedU, with settings that reach their other branches."""

from __future__ import annotations

from fedkin.methods.drfa import Drfa
from fedkin.methods.fedprox import FedProx
from fedkin.methods.fedsr import FedSr
from fedkin.methods.fedu import FedU
from fedkin.methods.pfedme import PFedMe
from fedkin.methods.tfl import Tfl

CASES = {
    "fedprox-equal": FedProx(mu=1.0, weights="equal"),
    "tfl-strong": Tfl(eta_lambda=0.3, q=0.5, graph={"every": 1, "vectors": "updates"}),
    "tfl-kl": Tfl(eta_lambda=0.2, divergence="kl", floor=0.01, graph={"every": 2}),
    "tfl-sampled-losses": Tfl(eta_lambda=0.3, ask_losses="sampled", graph={"layers": 1, "centrality": "degree"}),
    "tfl-clusters": Tfl(eta_lambda=0.3, graph={"every": 1, "clusters": 3, "similarity": "l2"}),
    "tfl-no-ascent": Tfl(eta_lambda=0.0),
    "drfa-strong": Drfa(gamma=0.05, ask_losses="all"),
    "drfa-no-snapshot": Drfa(gamma=0.05, snapshot=False),
    "pfedme-strong": PFedMe(lam=5.0, eta=0.1, inner_steps=2, beta=0.5, weights="samples"),
    "pfedme-global": PFedMe(eta=0.05, evaluate="global"),
    "fedu-cosine": FedU(lam=1.0, graph={"source": "cosine", "layers": 1}),
    "fedu-planted-all": FedU(lam=0.5, neighbours="all", graph={"source": "planted"}),
    "fedsr-strong": FedSr(l2r=0.05, cmi=0.05, norm="plain", weights="equal"),
}
