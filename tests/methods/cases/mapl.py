"""MAPL with weights that are learned from the first round on, and its named variants."""

from __future__ import annotations

from fedkin.methods.mapl import Mapl, MaplPlus

_SMALL = {"warmup": 1, "hidden": 9, "augment": {"noise": 0.1}}

CASES = {
    "mapl-learned": Mapl(**_SMALL, graph={"probe": 0.3}),
    "mapl-paper": Mapl(**_SMALL, absent=1.0, graph={"step": "paper"}),
    "mapl-released": Mapl(**_SMALL, variant="released", temperature=100.0, graph={"step": "released"}),
    "mapl-plus-learned": MaplPlus(**_SMALL, graph={"probe": 0.3}),
}
