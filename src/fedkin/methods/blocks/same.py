"""Groups with nothing told, from signatures: found once, with newcomers placed in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, TypedDict

import numpy as np
from pydantic import AfterValidator
from torch import Tensor

from fedkin.errors import ConfigError
from fedkin.flow import ServerFlow
from fedkin.graph import Evidence, Signature, Verdicts, canonical, find, place, same_alpha
from fedkin.keys import key
from fedkin.methods.blocks.clusters import Labels
from fedkin.methods.blocks.signing import Planned, collected
from fedkin.views import ServerView

__all__ = [
    "LEAST", "Same", "SameStage", "Tests", "by_content", "count_from_test", "count_of", "evidence_of", "found_among",
    "groups_from_test", "labels_of", "tests_of", "unsigned", "verdicts_of",
]  # fmt: skip

# Groups nearer than this are one: a small difference costs less than the samples that are lost (docs/groups.md).
LEAST = 0.01


def _is_same(spec: str) -> str:
    try:
        same_alpha(spec)
    except ConfigError as error:
        raise ValueError(f"{error}, or a number") from None
    return spec


# A setting that is a number of groups or "same[:alpha]" has the type `int | SameStage`.
SameStage = Annotated[str, AfterValidator(_is_same)]


class Same(Planned):
    """What the server keeps of groups from the test.

    signatures: {client id: [bytes] uint8} of the clients that the groups were made from. group: {client id: group,
    counted from 0} of these and of those that joined since.
    """

    signatures: dict[str, Tensor]
    group: dict[str, int]


class Tests(TypedDict):
    """What the server keeps of the tests behind groups: {node as text: test}, {client id: its last node}, the level."""

    tree: dict[str, Any]
    leaf: dict[str, int]
    alpha: float


def tests_of(found: Verdicts) -> Tests:
    """The tree of tests, without the clients of its inner nodes."""
    names = ("parent", "children", "cut", "p", "rejected", "verdict")
    tree = {str(node["node"]): {name: node[name] for name in names} for node in found.tree}
    leaf = {id: node["node"] for node in found.tree if not node["children"] for id in node["clients"]}
    return Tests(tree=tree, leaf=leaf, alpha=found.alpha)


def evidence_of(tests: Tests) -> Evidence:
    """For the records of a graph."""
    return Evidence.of(
        [tests["tree"][str(number)] for number in range(len(tests["tree"]))], tests["leaf"], tests["alpha"]
    )


def groups_from_test(
    server: ServerView[Any], held: Same | None, sampled: Sequence[str], spec: str
) -> ServerFlow[Same]:  # fmt: skip
    """Ask clients without a group for their signature. The first make the groups; later ones join one, or open one.

    spec: "same" or "same:alpha".
    """
    new = Same(signatures={}, group={}) if held is None else held.copy()
    signed = yield from collected(server, new, unsigned(server, sampled, new["group"]))
    if signed and not new["group"]:
        new["signatures"] = signed
        new["group"] = verdicts_of(server, signed, same_alpha(spec), LEAST).groups
    elif signed:
        found = verdicts_of(server, new["signatures"], same_alpha(spec), LEAST)
        group = dict(new["group"])
        for id in by_content(list(signed), signed):
            label = place(Signature.from_bytes(_bytes(signed[id])), found).group
            group[id] = max(group.values()) + 1 if label is None else group[found.members(label)[0]]
        new["group"] = group
    return new


def count_from_test(
    server: ServerView[Any], held: Same | None, sampled: Sequence[str], clusters: int | str
) -> ServerFlow[Same | None]:  # fmt: skip
    """For a method that needs only the number of groups: ask for signatures until groups are found from them."""
    if isinstance(clusters, int) or (held and held["group"]):
        return held
    return (yield from groups_from_test(server, held, sampled, clusters))


def count_of(clusters: int | str, held: Same | None) -> int | None:
    """The number of groups: given, or found from signatures; None before these came."""
    if isinstance(clusters, int):
        return clusters
    return len(set(held["group"].values())) if held and held["group"] else None


def labels_of(held: Same | None, ids: Sequence[str]) -> Labels:
    """The group of each of these clients [n]; clients without a signature are each by themselves."""
    group = {} if held is None else held["group"]
    free = max(group.values(), default=-1) + 1
    return canonical([group.get(id, free + place) for place, id in enumerate(ids)])


def unsigned(server: ServerView[Any], sampled: Sequence[str], signed: Collection[str]) -> list[str]:
    """Clients that are there and not in `signed`."""
    # Where all take part in every round, whoever is not sampled is not there.
    there = sampled if server.training.per_round == "all" else server.clients
    return sorted(id for id in there if id not in signed)


def by_content(ids: Iterable[str], signatures: Mapping[str, Tensor]) -> list[str]:
    """In the order of their signatures, so that ids decide only between equal ones."""
    return sorted(ids, key=lambda id: (_bytes(signatures[id]), id))


def verdicts_of(server: ServerView[Any], signatures: Mapping[str, Tensor], alpha: float, least: float) -> Verdicts:
    """What these clients' signatures say (`fedkin.graph.find`)."""
    signed = tuple((id, _bytes(signatures[id])) for id in by_content(signatures, signatures))
    return _found(signed, alpha, least, key(server.seed, "", "kin") >> 32)


# Newcomers are tested against groups found earlier: these are found again from what the state has, once a process.
@lru_cache(maxsize=4)
def _found(signed: tuple[tuple[str, bytes], ...], alpha: float, least: float, seed: int) -> Verdicts:
    return found_among({id: Signature.from_bytes(data) for id, data in signed}, alpha, least, seed)


def found_among(signatures: Mapping[str, Signature], alpha: float, least: float, seed: int) -> Verdicts:
    """`fedkin.graph.find`, but no client is alone for its class shares.

    Where nothing but class shares differs and some client is alone, all are one group of "shares" after all. Groups of
    clients that have the same few classes are a little better off apart. But whose classes look as everybody else's
    need not train alone.
    """
    return _joined(find(signatures, alpha=alpha, least=least, seed=seed), signatures)


def _joined(found: Verdicts, signatures: Mapping[str, Signature]) -> Verdicts:
    joined = dict(enumerate(found.verdicts))
    own = found.groups
    label = dict(own)
    todo = [0]
    while todo:
        node = found.tree[todo.pop()]
        only_shares = "concept" in node["p"] and not {"offset", "concept"} & set(node["rejected"])
        if node["children"] and only_shares and "alone" in {found.verdicts[own[id]] for id in node["clients"]}:
            number = len(joined)
            joined[number] = "shares"
            label |= dict.fromkeys(node["clients"], number)
        else:
            todo.extend(node["children"])
    if len(joined) == len(found.verdicts):
        return found
    raw = np.array([label[id] for id in found.ids])
    labels = canonical(raw)
    numbers = [int(raw[labels == place][0]) for place in range(labels.max() + 1)]
    profiles = dict(enumerate(found.profiles))
    for number in set(numbers) - set(profiles):
        profiles[number] = Signature.total([signatures[id] for id in found.ids if label[id] == number])
    verdicts = tuple(joined[number] for number in numbers)
    return replace(found, labels=labels, verdicts=verdicts, profiles=tuple(profiles[number] for number in numbers))


def _bytes(data: Tensor) -> bytes:
    return data.contiguous().numpy().tobytes()
