"""A newcomer: which group does it belong to, if any?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.errors import GraphError
from fedkin.graph.same.anova import table_of
from fedkin.graph.same.signature import Signature
from fedkin.graph.same.stack import stacked
from fedkin.graph.same.verdicts import Verdicts

__all__ = ["Placement", "place"]


@dataclass(frozen=True)
class Placement:
    """Where a client belongs.

    p [groups]: corrected p-value of "the client belongs to this group". group: the likeliest, or None if it belongs to
    none.
    """

    p: tuple[float, ...]
    group: int | None


def place(signature: Signature, verdicts: Verdicts) -> Placement:
    """Test a client that was not there against every group.

    A group that is the "same" (or one client alone) is met in every block; one of "shares" only in what a
    class looks like; one of "offsets" only in what is left beyond a shift of all classes.

    >>> import numpy as np
    >>> from fedkin.graph import Plan, Spread, find, sign
    >>> rng = np.random.default_rng(0)
    >>> data = [rng.normal(size=(80, 6)) + 2 * (i % 2) for i in range(8)]
    >>> plan = Plan.of(Spread.of(x) for x in data)
    >>> found = find([sign(plan, x) for x in data])
    >>> place(sign(plan, rng.normal(size=(40, 6)) + 2), found).group == found.groups["1"]
    True
    >>> place(sign(plan, rng.normal(size=(40, 6)) - 4), found).group is None
    True
    """
    if signature.plan != verdicts.profiles[0].plan:
        raise GraphError("the client signed with another plan than the groups; sign with the groups' plan")
    p = tuple(
        min(1.0, verdicts.tests * _p(signature, profile, verdict, verdicts.alpha / verdicts.tests))
        for profile, verdict in zip(verdicts.profiles, verdicts.verdicts, strict=True)
    )
    best = int(np.argmax(p))
    return Placement(p, best if p[best] >= verdicts.alpha else None)


def _p(one: Signature, profile: Signature, verdict: str, enough: float) -> float:
    """The smallest p-value over the tests that a group of this verdict passes itself."""
    found = [1.0]
    if verdict in ("same", "alone"):
        for name, moments in one.blocks.items():
            shares = name == "y" and bool((moments.mean >= 0).all()) and abs(moments.mean.sum() - 1) < 0.01
            found.append(stacked([moments, profile.blocks[name]], shares=shares).p(enough, 0))
    if one.cells is not None and profile.cells is not None:
        effects = table_of([one.cells, profile.cells]).test()
        found.append(effects.concept_p)
        if verdict != "offsets":
            found.append(effects.offset_p)
    return min(found)
