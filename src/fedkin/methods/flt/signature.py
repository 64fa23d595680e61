"""FLT's signatures: how a client makes its k centres, and how the server collects them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.federation import Samples
from fedkin.federation.inputs import parts
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow
from fedkin.graph import Signature
from fedkin.learning.encoders import Encode, Reconstruction
from fedkin.methods.blocks.signatures import collected
from fedkin.methods.flt.encoder import EncoderSettings, view_of
from fedkin.methods.flt.state import ClientState, State
from fedkin.views import ClientView, ServerView

__all__ = ["centres_of", "codes", "content", "signatures"]


def signatures(
    server: ServerView[State], settings: EncoderSettings | None, ids: Sequence[str], sizes: bool
) -> ServerFlow[dict[str, Message]]:
    """Of these clients the `signature`, with `sizes` also n: k centres, Algorithm 2, lines 1 to 11.

    Makes the encoder if need be. A client that signs again is not sent an encoder that it has kept.
    settings: None for signatures of moments, in place of centres.
    """
    if settings is None:
        signed = yield from collected(server, server.state, ids)
        n = {id: {"n": _count(data)} if sizes else {} for id, data in signed.items()}
        return {id: Message(signature=data, **n[id]) for id, data in signed.items()}
    replies = yield from _centres(server, settings, ids)
    return {
        id: Message(signature=reply["centres"], **({"n": reply["n"]} if sizes else {})) for id, reply in replies.items()
    }


def _count(data: Tensor) -> int:
    return int(Signature.from_bytes(data.numpy().tobytes()).n)


def _centres(
    server: ServerView[State], settings: EncoderSettings, ids: Sequence[str]
) -> ServerFlow[dict[str, Message]]:
    state = server.state
    if not ids or not (yield from _encoder_made(server, settings, ids)):
        return {}
    fields = {"encoder": state["encoder"], "moments": state["moments"]}
    # An empty field does not travel.
    whole = Message(**{name: value for name, value in fields.items() if value})
    light = Message(**{name: value for name, value in whole.items() if name != "encoder"})
    messages = {id: light if settings.keep and id in state["signatures"] else whole for id in ids}
    return dict((yield from Ask("sign", messages)))


def _encoder_made(server: ServerView[State], settings: EncoderSettings, ids: Sequence[str]) -> ServerFlow[bool]:
    """Make the encoder, once; False if the moments that it needs did not come."""
    state, shape = server.state, server.task.numbers("method.encoder")
    if "encoder" in state:
        return True
    sums: dict[str, Any] = {}
    if settings.measures(shape):
        replies = yield from Ask("measure", {id: Message() for id in ids})
        if not replies:
            return False
        came = [reply for _, reply in sorted(replies.items())]
        sums = {name: sum(reply[name] for reply in came) for name in ("count", "total", "squares")}
    params, pretrained_on = settings.trained(shape, server.public)
    state["encoder"], state["moments"] = settings.sent(params), pretrained_on or sums
    return True


def codes(client: ClientView[ClientState], message: Message, settings: EncoderSettings) -> ClientFlow[Tensor]:
    """At a client: the codes [n, dims] of its samples, after J epochs of fine-tuning on them."""
    shape = client.task.numbers("method.encoder")
    view = view_of(client.train, shape, message.get("moments", {}))
    net = settings.net(shape)
    if net is None:
        return view(client.train.inputs(slice(None))).flatten(1)
    own = message.get("encoder") or client.state["encoder"]
    params: Params = {**net.initial, **own}
    if settings.fine_tune:
        training = settings.training(settings.fine_tune)
        fitted = yield from Fit(params, Reconstruction(view), training=training, net=net)
        params = fitted.params
    if settings.keep:
        client.state["encoder"] = settings.sent(params)
    return (yield from Infer(params, Encode(view), net=net))


def centres_of(points: Tensor, k: int, seed: int) -> Tensor:
    """k-means centres [k, d] of points [n, d] (k-means++, the best of 5 starts), in the order of their coordinates.

    If there are at most k distinct points, they are the centres.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    x = points.double().numpy()
    distinct = np.unique(x, axis=0)
    if len(distinct) > k:
        # Sums over several threads differ in the last bits from run to run.
        with _threads().limit(limits=1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # points that differ, but by rounding only
            distinct = KMeans(k, n_init=5, random_state=seed).fit(x).cluster_centers_
        distinct = distinct[np.lexsort(distinct.T[::-1])]
    return torch.from_numpy(distinct).to(points.dtype)


@cache
def _threads() -> Any:
    """The libraries with threads; looking for them takes longer than a small k-means."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def content(samples: Samples) -> str:
    """A hash of the samples' values and labels, by which a client knows that its data have changed."""
    rows = slice(None) if samples.rows is None else samples.rows
    digest = blake2b(repr(samples.scale).encode(), digest_size=16)
    for values in (*parts(samples.x).values(), samples.y):
        digest.update(values[rows].contiguous().numpy().tobytes())
    return digest.hexdigest()
