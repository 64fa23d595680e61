"""Groups with nothing told: can these clients' data be told apart, with a p-value (docs/groups.md).

Messages: every client sends `Spread.of(x, y)`; the server sends `Plan.of(spreads)` down; every client sends
`sign(plan, x, y)` (a `Signature`, 2 KB); the server calls `find(signatures)` and, for newcomers, `place`.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> data = {f"c{i}": (rng.normal(size=(80, 6)) + i % 2, rng.integers(3, size=80)) for i in range(8)}
>>> plan = Plan.of(Spread.of(x, y) for x, y in data.values())
>>> found = find({id: sign(plan, x, y) for id, (x, y) in data.items()})
>>> found.labels, found.verdicts
(array([0, 1, 0, 1, 0, 1, 0, 1]), ('same', 'same'))
"""

from __future__ import annotations

from fedkin.graph.same.anova import Interaction, interaction
from fedkin.graph.same.apart import apart, coordinates
from fedkin.graph.same.clump import clump_p
from fedkin.graph.same.cluster import ward
from fedkin.graph.same.files import Rows, read_rows, read_signed, write_signed
from fedkin.graph.same.find import find
from fedkin.graph.same.moments import Moments
from fedkin.graph.same.null import null_p, outlier_p, same_p, top_p
from fedkin.graph.same.place import Placement, place
from fedkin.graph.same.plan import Plan, Spread
from fedkin.graph.same.sign import sign
from fedkin.graph.same.signature import Cells, Signature
from fedkin.graph.same.split import split_p
from fedkin.graph.same.verdicts import Verdicts

__all__ = [
    "Cells", "Interaction", "Moments", "Placement", "Plan", "Rows", "Signature", "Spread", "Verdicts",
    "apart", "clump_p", "coordinates", "find", "interaction", "null_p", "outlier_p", "place", "read_rows",
    "read_signed", "same_p", "sign", "split_p", "top_p", "ward", "write_signed",
]  # fmt: skip
