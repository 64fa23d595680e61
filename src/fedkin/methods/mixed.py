"""Mixed: the linear mixed-effects model of pooled rows, fitted from one message of sums per client.

Luo, Islam, Sheils, et al. DLMM as a lossless one-shot algorithm for collaborative multi-site distributed linear mixed
models. Nature Communications 13, 1678, 2022. For two classes: penalised quasi-likelihood, Breslow and Clayton, JASA 88,
1993, and Luo et al., JAMIA 29, 2022 (dPQL). `docs/methods/mixed.md` says where papers and this file differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
import torch
from torch import nn

from fedkin.errors import ConfigError
from fedkin.federation import AnyRoster
from fedkin.flow import Ask, ClientFlow, Infer, Message, Params, ServerFlow, ServerMethod, phase
from fedkin.forms import Integer, Sums
from fedkin.learning.net import Net
from fedkin.methods.blocks.vectors import Array
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView

# Search range of the ratio of variances (between clients / within); a ratio below the first limit is zero.
_SMALLEST, _LARGEST = 1e-8, 1e6


class Site(NamedTuple):
    """The sums of one client: X'X [p, p], X'y [p], y'y, with rows weighted by W if there are weights, and n."""

    xx: Array
    xy: Array
    yy: float
    n: int


class Components(NamedTuple):
    """The model of one target: fixed effects beta [p], variance of each random effect over sigma^2 [p], sigma^2."""

    beta: Array
    ratios: Array
    sigma2: float


class Mixed(ServerMethod):
    """y = X beta + X u_k + e at client k, with u_k ~ N(0, D) and e ~ N(0, sigma^2), fitted by REML from sums.

    X [n, p]: inputs and a last column of ones. Each client sends X'X, X'y, y'y and n once, which determine the fit on
    pooled rows; the server sends beta and D / sigma^2, and the client computes its best linear unbiased prediction

        u_k = (sigma^2 D^-1 + X'X)^-1 X'(y - X beta)

    For two classes: y is replaced by eta + (y - mu) / (mu (1 - mu)) with weights mu (1 - mu), eta = X beta + X u_k, and
    sigma^2 = 1; each client sends one message per round.

    slopes: random slopes with one variance for all inputs ("common", which suits standardised columns) or a variance
    for "each"; "none": only a random intercept. Needs the model "linear", or another without a trainable body.
    """

    name = "mixed"
    title = "Mixed-effects model"
    paper = "Luo et al., Nature Communications 2022"
    kind = "personalised"
    by_client = ("sums",)
    travels = "sums of squares and products of inputs and targets, once"
    weighs_classes = False
    linear = True

    slopes: Literal["none", "common", "each"] = "common"

    def check(self, federation: AnyRoster) -> None:
        task = federation.task
        if task.kind != "regression" and not (task.labels and task.classes == 2):
            raise ConfigError("mixed: it is for regression, risk, or two classes; take kin or local for other tasks")

    def equip(self, net: Net, task: Task, key: int) -> Net:
        names = set(net.initial)
        if not names <= {"head.weight", "head.bias"} or not isinstance(net.module.head, nn.Linear):
            raise ConfigError('mixed: it fits a linear model: set model.name = "linear"')
        return net

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(
        xx=Sums(lambda at: at.width + 1, lambda at: at.width + 1, dtype=torch.float64),
        xy=Sums(lambda at: at.width + 1, lambda at: _targets(at.task), dtype=torch.float64),
        yy=Sums(lambda at: _targets(at.task), dtype=torch.float64),
        n=Integer(1),
    )
    def sums(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """The client's sums; for two classes those of the working targets at the current model."""
        x, y = yield from self.design(client)
        if client.task.kind != "regression":
            # X beta + X u_k [n], with u_k for the weights of the last message; zero at first.
            eta = x @ self.coefficients(client, x, y, message)[0] if "beta" in message else np.zeros(len(x))
            client.state["eta"] = torch.from_numpy(eta)
        y, weight = self.weighted_targets(client, y)
        wx = x * weight[:, None]
        sums = {"xx": x.T @ wx, "xy": wx.T @ y, "yy": (weight[:, None] * y * y).sum(0)}
        return Message(**{name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in sums.items()}, n=client.size)

    def design(self, client: ClientView) -> ClientFlow[tuple[Array, Array]]:
        """X [n, p] and y [n, targets] in double precision."""
        features = yield from Infer(client.initial, "features")
        x = np.c_[features.double().numpy(), np.ones(len(features))]
        return x, client.train.labels().double().numpy().reshape(len(x), -1)

    def weighted_targets(self, client: ClientView, y: Array) -> tuple[Array, Array]:
        """Targets [n, targets] and weights [n]; for two classes the working ones at the last linear predictor."""
        if client.task.kind == "regression":
            return y, np.ones(len(y))
        eta = client.state.get("eta")
        return working(np.zeros(len(y)) if eta is None or len(eta) != len(y) else eta.numpy(), y)

    def coefficients(self, client: ClientView, x: Array, y: Array, message: Message) -> Array:
        """Beta + u_k [targets, p]."""
        beta, ratios = (message[name].double().numpy() for name in ("beta", "ratios"))
        y, weight = self.weighted_targets(client, y)
        wx = x * weight[:, None]
        return np.stack([b + blups(x.T @ wx, wx.T @ (y[:, k] - x @ b), ratios[k]) for k, b in enumerate(beta)])

    # -- at the server ----------------------------------------------------------------------------------------

    def start(self, server: ServerView) -> None:
        empty = torch.zeros(0, dtype=torch.float64)
        server.state.update({"sums": {}, "beta": empty, "ratios": empty})

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state, again = server.state, server.task.kind != "regression"  # the weights of classes change in each round
        asked = {id: self.offer(server, id) for id in sampled if again or id not in state["sums"]}
        replies = (yield from Ask("sums", asked)) if asked else {}
        if not replies:
            return
        state["sums"] = {**state["sums"], **{id: dict(reply.items()) for id, reply in sorted(replies.items())}}
        sigma2 = 1.0 if again else None
        fits = [reml(_sites(state["sums"], target), self.slopes, sigma2) for target in range(_targets(server.task))]
        beta, ratios, _ = zip(*fits, strict=True)
        state["beta"], state["ratios"] = torch.from_numpy(np.stack(beta)), torch.from_numpy(np.stack(ratios))
        server.info = _variances(fits)

    # -- the model that a client uses -------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        beta, ratios = server.state["beta"], server.state["ratios"]
        return Message(beta=beta, ratios=ratios) if len(beta) else Message()

    def use(self, client: ClientView, message: Message) -> ClientFlow[Params]:
        if "beta" not in message:
            return client.initial
        x, y = yield from self.design(client)
        rows = self.coefficients(client, x, y, message)
        if client.task.kind != "regression":
            rows = np.concatenate([-rows / 2, rows / 2])
        params = {"head.weight": rows[:, :-1], "head.bias": rows[:, -1]}
        return {name: torch.from_numpy(np.ascontiguousarray(a)).to(client.net.dtype) for name, a in params.items()}


def _variances(fits: Sequence[Components]) -> dict[str, float]:
    """For the records: the variances within clients and of their intercepts, for each target."""
    variances = {}
    for target, fit in enumerate(fits):
        end = "" if len(fits) == 1 else f"_{target}"
        variances[f"variance_within{end}"] = fit.sigma2
        variances[f"variance_of_intercepts{end}"] = fit.sigma2 * fit.ratios[-1]
    return variances


def _targets(task: Task) -> int:
    return task.outputs if task.kind == "regression" else 1


def _sites(sums: Mapping[str, Mapping[str, Any]], target: int) -> list[Site]:
    """The clients' sums of one target, in the order of ids."""
    return [
        Site(s["xx"].numpy(), s["xy"][:, target].numpy(), float(s["yy"][target]), s["n"])
        for _, s in sorted(sums.items())
    ]


def working(eta: Array, y: Array) -> tuple[Array, Array]:
    """Working targets [n, 1] and weights [n] of a logistic model at the linear predictor eta [n].

    >>> working(np.zeros(2), np.array([[0.0], [1.0]]))
    (array([[-2.],
           [ 2.]]), array([0.25, 0.25]))
    """
    eta = np.clip(eta, -15, 15)
    mu = 1 / (1 + np.exp(-eta))
    weight = mu * (1 - mu)
    return eta[:, None] + (y - mu[:, None]) / weight[:, None], weight


def blups(xx: Array, residual: Array, ratios: Array) -> Array:
    """u = (diag(1 / ratios) + X'X)^-1 X'r [p], from X'X [p, p] and X'r [p]; zero where a ratio is zero."""
    root = np.sqrt(ratios)
    inner = np.eye(len(root)) + root[:, None] * xx * root
    return np.asarray(root * np.linalg.solve(inner, root * residual))


def reml(
    sites: Sequence[Site], slopes: Literal["none", "common", "each"] = "common", sigma2: float | None = None
) -> Components:
    """Fit by restricted maximum likelihood from sums; the result is the same as on pooled rows.

    With V_k = I + X D X' (D the diagonal of ratios), minimises

        sum_k log |V_k| + log |sum_k X'V_k^-1 X| + (N - p) log sigma^2,   sigma^2 = sum_k r'V_k^-1 r / (N - p)

    sigma2: a known sigma^2; the last term is then sum_k r'V_k^-1 r / sigma2. Combinations of columns that are constant
    zero in all clients' rows get no fixed effect.
    """
    products, moments, squares, sizes = zip(*sites, strict=True)
    xx, xy, yy, rows = np.stack(products), np.stack(moments), sum(squares), sum(sizes)
    p = xx.shape[1]
    lengths = np.diag(xx.sum(0))
    scale = np.sqrt(np.where(lengths > 0, lengths, 1.0))
    values, axes = np.linalg.eigh(xx.sum(0) / np.outer(scale, scale))
    basis = (axes / scale[:, None])[:, values > values.max() * 1e-10]  # spans the rows of X

    def fitted(ratios: Array) -> tuple[float, Array, float]:
        root = np.sqrt(ratios)
        inner = np.eye(p) + root[:, None] * xx * root
        log_v = float(np.linalg.slogdet(inner)[1].sum())
        scaled = root[:, None] * np.concatenate([xx, xy[:, :, None]], 2)  # [K, p, p + 1]
        solved = np.linalg.solve(inner, scaled)
        lost = (scaled.transpose(0, 2, 1) @ solved).sum(0)
        a = basis.T @ (xx.sum(0) - lost[:p, :p]) @ basis
        b = basis.T @ (xy.sum(0) - lost[:p, p])
        gamma = np.linalg.solve(a, b)
        quadratic = max(yy - lost[p, p] - float(b @ gamma), 1e-300)
        degrees = max(rows - len(b), 1)
        last = quadratic / sigma2 if sigma2 is not None else degrees * math.log(quadratic / degrees)
        objective = log_v + float(np.linalg.slogdet(a)[1]) + last
        return objective, basis @ gamma, quadratic / degrees if sigma2 is None else sigma2

    def ratios_of(logs: Array) -> Array:
        r = np.where(logs <= math.log(_SMALLEST), 0.0, np.exp(logs))
        if slopes == "each":
            return np.asarray(r)
        return np.asarray(np.r_[np.full(p - 1, r[0] if slopes == "common" else 0.0), r[-1]])

    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    count = {"none": 1, "common": 2, "each": p}[slopes]
    best, value = np.full(count, low), math.inf
    for start in (low, math.log(1e-4), math.log(1e-2), 0.0):
        result: Any = scipy.optimize.minimize(  # type: ignore[call-overload]
            lambda logs: fitted(ratios_of(logs))[0], np.full(count, start), method="L-BFGS-B",
            bounds=[(low, high)] * count, options={"ftol": 1e-13, "gtol": 1e-8},
        )  # fmt: skip
        if result.fun < value:
            best, value = result.x, float(result.fun)
    # A variance at its bound is zero.
    ratios = ratios_of(np.where(best < low + 1e-3, low, best))
    _, beta, variance = fitted(ratios)
    return Components(np.asarray(beta), ratios, variance)
