"""SFMTL-Graph's `share`: bodies along the graph, as means inside communities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.learning.net import body_of, head_of
from fedkin.methods.sfmtl_graph import SfmtlGraph, community_bodies
from support import Watched, small_setup

ORACLE = {"control": "oracle", "groups": "components"}
Models = dict[str, dict[str, Tensor]]


def watched(share: str, rounds: int = 3, federation: Any = None, graph: Any = None, **settings: Any) -> Watched:
    method = SfmtlGraph(lam=0.3, anchor_weight=0.01, share=share, graph=graph or {})
    return Watched(small_setup(method, federation, **settings)).rounds(rounds)


def models(run: Watched) -> Models:
    return {id: dict(run.model(id)) for id in sorted(run.federation)}


def same(one: Models, other: Models) -> bool:
    return all(torch.equal(one[id][name], other[id][name]) for id in one for name in one[id])


def test_bodies_are_the_communitys_mean_weighted_by_samples() -> None:
    run = watched("model", graph=ORACLE)
    replies = run.replies("train")
    planted = run.federation.planted
    assert planted is not None
    for id in run.federation:
        members = sorted(other for other in replies if planted[other] == planted[id])
        n = sum(replies[other]["n"] for other in members)
        for name, tensor in body_of(run.model(id)).items():
            mean = sum(
                (replies[o]["body"][name].double() * replies[o]["n"] / n for o in members), torch.zeros(()).double()
            )
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)


def test_sharing_the_head_leaves_bodies_and_sharing_the_body_leaves_heads() -> None:
    head, body, model = (watched(share, 1, graph=ORACLE) for share in ("head", "body", "model"))
    for id in head.federation:
        sent = body.replies("train")[id]
        assert all(torch.equal(t, sent["head"][name]) for name, t in head_of(body.model(id)).items())
        assert all(torch.equal(t, sent["body"][name]) for name, t in body_of(head.model(id)).items())
        assert "body" not in head.replies("train")[id]
        # After one round the model is the body of one and the head of the other.
        both = {**head_of(head.model(id)), **body_of(body.model(id))}
        assert all(torch.equal(t, both[name]) for name, t in model.model(id).items())


@pytest.mark.parametrize("share", ["head", "body", "model"])
def test_without_edges_all_three_are_the_same(share: str) -> None:
    assert same(models(watched(share, graph={"control": "self"})), models(watched("head", graph={"control": "self"})))


@pytest.mark.parametrize("share", ["body", "model"])
def test_a_dropped_client_keeps_its_body_and_is_in_no_mean(share: str) -> None:
    run = watched(share, 1, graph=ORACLE)
    lost = sorted(run.federation)[0]
    before = dict(run.model(lost))
    run.lose = lambda phase, id: phase == "train" and id == lost
    run.round(2)
    replies, planted = run.replies("train"), run.federation.planted
    assert planted is not None
    assert lost not in replies
    members = [id for id in replies if planted[id] == planted[lost]]
    means = community_bodies({id: replies[id] for id in members}, np.zeros(len(members), dtype=np.int64))
    for id, mean in zip(members, means, strict=True):
        assert all(torch.equal(run.model(id)[name], tensor) for name, tensor in mean.items())
    # It trained, and took nothing from others.
    assert not all(torch.equal(before[name], tensor) for name, tensor in run.model(lost).items())
