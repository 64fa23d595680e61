"""MAPL with weights that are learned from the first round on, and its named variants."""

from __future__ import annotations

from fedkin.methods import METHODS

_SMALL = {"warmup": 1, "hidden": 9, "augment": {"noise": 0.1}}

CASES = {
    "mapl-learned": METHODS["mapl"](**_SMALL, graph={"probe": 0.3}),
    "mapl-paper": METHODS["mapl"](**_SMALL, absent=1.0, graph={"step": "paper"}),
    "mapl-released": METHODS["mapl"](**_SMALL, variant="released", temperature=100.0, graph={"step": "released"}),
    "mapl-plus-learned": METHODS["mapl-plus"](**_SMALL, graph={"probe": 0.3}),
}
