"""Kin: tests propose which clients may share, held-out samples choose who shares and what each client has of its own.

A method of fedkin that needs no information about groups. `docs/methods/kin.md` gives the reasons.

    once         every client sends a signature of 2 KB; the server tests which clients differ: a tree of groups
    levels       "all": one model; "branches": one for each part of the tree whose clients differ only by degrees;
                 "groups": one for each group in which no test finds a difference; clients in no group train locally
    trial        in the first half of the rounds all levels train, on four fifths of each client's samples
    heads        each client fits its own head; their mean is a second shared head of each level
    choice       (level, shared head, strength) with the smallest loss on the held-out samples, pooled over clients;
                 then own bodies, if their loss is clearly smaller: a few passes of training from the chosen model
    afterwards   the chosen level trains on all samples; a client uses its model with a head pulled to the shared one:
                 min_V sum loss(F V, y) + strength / 2 |V - W|^2     (`fedkin.methods.blocks.pulled_head`)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from scipy import special
from torch import Tensor

from fedkin.federation import Samples
from fedkin.flow import Ask, ClientFlow, Fit, Infer, Message, Params, ServerFlow, phase
from fedkin.forms import COUNT, HEAD, NET, Integer, Shaped
from fedkin.graph import Graph, Verdicts, apart
from fedkin.learning.aggregate import Rule
from fedkin.learning.losses import per_sample
from fedkin.learning.net import body_of, head_of
from fedkin.methods.blocks.averaging import Weights, mean_asked
from fedkin.methods.blocks.clusters import cluster_means, continued, mean_of_clusters, members_graph
from fedkin.methods.blocks.pulled_head import (
    SHARED,
    Strength,
    can_pull,
    in_proportion,
    pulled_heads,
    strengths,
    with_head,
    with_own_body,
    with_own_parts,
)
from fedkin.methods.blocks.signatures import (
    SigningMethod,
    Tests,
    by_content,
    collect_signatures,
    due,
    evidence_of,
    groups_joined,
    signature_in,
    tests_of,
    unsigned,
    verdicts_of,
)  # fmt: skip
from fedkin.methods.blocks.watching import watch_members
from fedkin.tasks import Task
from fedkin.views import ClientView, ServerView

# By client id: the mean held-out losses [levels, columns]; these and the shares of wrong classes [levels, columns, 2].
Costs = Mapping[str, np.ndarray[Any, Any]]
Judgements = Mapping[str, np.ndarray[Any, Any]]
LEVELS = ("all", "branches", "groups")  # from one model to the most models
MIN_TRIAL = 3  # with fewer trial rounds nothing is chosen: groups with shared heads
MIN_HOLDOUT = 30  # with fewer held-out samples of all clients together nothing is chosen
MIN_SURE = 4  # with fewer clients, no difference counts as clear
FOLD, BLOCKS = 5, 25  # a client's samples are BLOCKS blocks, and one block in FOLD is held out
DOUBT = 1.0  # within this number of standard errors, more models and a stronger pull are preferred
SURE = 2.0  # own bodies must be better by this number of standard errors, since they cost training at each use
OWN_HEAD = Strength(1.0, 1.0)  # pull of the heads whose mean is a level's second shared head
CLIPPED = 0.25  # share of the clients' differences in cost that is clipped at each end


class Kin(SigningMethod):
    """Groups from tests, and a level and a degree of sharing from held-out samples.

    alpha: how often clients with the same distribution may be split, over all searches for groups. least: groups that
    differ by less still share a model (`fedkin.graph.find`). regroup_every: after this number of rounds all clients
    send new signatures, and groups and level are found again (None: never). degrees: "auto" chooses; "groups" always
    trains the groups, with shared heads. ordered: the order of samples may carry information (`fedkin.graph.sign`).
    weights, aggregate: as in FedAvg.
    """

    name = "kin"
    title = "Kin"
    paper = "(fedkin)"
    kind = "clustered"
    by_client = ("signatures", "group", "placed", "tests.leaf", "watched")
    travels = (
        "once: a signature of 2 KB, and a head for each level, up; then the whole model of each level on trial, or of "
        "the chosen one"
    )

    alpha: float = Field(0.001, gt=0, lt=1)
    least: float = Field(0.01, ge=0)
    regroup_every: int | None = Field(None, ge=1)
    degrees: Literal["auto", "groups"] = "auto"
    ordered: bool = True
    weights: Weights = "samples"
    aggregate: Rule = "mean"

    @property
    def reads_order(self) -> bool:
        return self.ordered

    @property
    def signs_again(self) -> bool:
        return self.regroup_every is not None

    def start(self, server: ServerView) -> None:
        """Set the server's state.

        Groups are numbered from 0, as text. watched: {client id: doubts about its membership}. signatures: {client id:
        [bytes] uint8}. group: {client id: group} of every client with a signature. verdict: {group: "same", "shares",
        "offsets" or "alone"}, from the tests. branch: {group: its branch}. placed: {client id: True} of clients that
        joined existing groups. looks: number of searches for groups. tests: those of the last search. trial_end: last
        round of its trial. models: {level: {node: params}} of the levels that train now; a client that is alone keeps
        its own model. choice: {"level", "weights", "bias", "own_body", "leads"}: the chosen level and strengths,
        whether clients have own bodies, and `leads_of` the level; empty during the trial.

        A client's state: own, the model that it trains by itself; trial, the same on four fifths of its samples.
        """
        server.state = {
            "signatures": {}, "group": {}, "verdict": {}, "branch": {}, "placed": {}, "looks": 0, "trial_end": 0,
            "models": {}, "choice": {}, "tests": Tests(tree={}, leaf={}, alpha=self.alpha, warnings=[]),
        }  # fmt: skip

    def leave(self, server: ServerView, ids: Collection[str]) -> None:
        """Forget clients; if no founder of the groups is left, the clients that joined later replace them."""
        super().leave(server, ids)
        state = server.state
        if len(state["placed"]) == len(state["group"]):
            state["placed"] = {}
        groups = set(state["group"].values())
        state["verdict"] = {number: verdict for number, verdict in state["verdict"].items() if number in groups}
        state["branch"] = {number: branch for number, branch in state["branch"].items() if number in groups}
        nodes = {level: set(nodes_of(state, level).values()) for level in state["models"]}
        state["models"] = {
            level: {node: model for node, model in models.items() if node in nodes[level]}
            for level, models in state["models"].items()
        }

    # -- at a client ------------------------------------------------------------------------------------------

    @phase(n=COUNT, params=NET.when(lambda at: not at.asked["alone"]))
    def train(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Train a level's model; on four fifths of the samples while levels are on trial."""
        part = client.train.take(held_out(client.train)[0]) if message["trial"] else None
        training = None if part is None else in_proportion(client.training, len(part), client.size)
        if not message["alone"]:
            fitted = yield from Fit(message.params, data=part, training=training)
            return Message(n=client.size if part is None else len(part), params=fitted.params)
        # A client that stays alone will use this model, so it trains on all samples from the first round.
        fitted = yield from Fit(own_model(client, message))
        client.state["own"] = fitted.params
        if part is not None:
            fitted = yield from Fit(client.state.get("trial", client.initial), data=part, training=training)
            client.state["trial"] = fitted.params
        return Message(n=client.size)

    @phase(n=COUNT, params=HEAD)
    def solve_head(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Return the client's own head, fitted to the samples that it trains on during the trial."""
        part = client.train.take(held_out(client.train)[0])
        features = yield from Infer(message.params, "features", data=part)
        (head,) = pulled_heads(message.params, features, part.labels(), [OWN_HEAD], client.task)
        return Message(n=len(part), params=head_of(with_head(message.params, head)))

    @phase(n=Integer(), costs=Shaped(lambda at: len(strengths(at.task)), 2, dtype=torch.float64))
    def judge(self, client: ClientView, message: Message) -> ClientFlow[Message]:
        """Return the mean loss and the share of wrong classes on the held-out samples under each strength.

        In other tasks than classification the loss is in place of the share.
        """
        part, test = (client.train.take(rows) for rows in held_out(client.train))
        tried = strengths(client.task)
        if not len(test):
            return Message(n=0, costs=torch.zeros(len(tried), 2, dtype=torch.float64))
        targets = test.labels()
        params = client.state.get("trial", client.initial) if message["alone"] else message.params
        if message["alone"] or not can_pull(params, client.task):
            outputs = yield from Infer(params, "logits", data=test)
            # Without a head to pull, all strengths have the same cost.
            return Message(n=len(test), costs=judgement(outputs.double(), targets, client.task).repeat(len(tried), 1))
        if message["own_body"]:
            params = yield from with_own_body(client, params, part)
        features = yield from Infer(params, "features", data=part)
        test_features = (yield from Infer(params, "features", data=test)).double()
        x = torch.cat([test_features, torch.ones(len(test), 1, dtype=torch.float64)], 1)
        heads = pulled_heads(params, features, part.labels(), tried, client.task)
        return Message(n=len(test), costs=torch.stack([judgement(x @ head, targets, client.task) for head in heads]))

    def use(self, client: ClientView, message: Message) -> Params | ClientFlow[Params]:
        """The client's own model if it is alone, else the level's model with the chosen own parts."""
        if message["alone"]:
            return own_model(client, message)
        if "weights" not in message:
            return message.params
        strength = Strength(message["weights"], message["bias"])
        return with_own_parts(client, message.params, strength, message["own_body"])

    # -- at the server ------------------------------------------------------------------------------------------

    def round(self, server: ServerView, sampled: Sequence[str]) -> ServerFlow[None]:
        state = server.state
        # Clients without a signature send one; groups are found, and newcomers are placed in them.
        again = due(self.regroup_every, server.round)
        to_sign = unsigned(server, sampled, () if again else state["signatures"])
        signed = yield from collect_signatures(server, state, to_sign)
        if signed:
            update_groups(server, signed, self)
        ids = [id for id in sampled if id in state["group"]]
        if ids and not state["choice"] and server.round > state["trial_end"]:
            yield from self.choose(server, ids)
        for level in list(state["models"]):
            yield from self.train_level(server, level, ids)
        server.info = figures(state)

    def train_level(self, server: ServerView, level: str, ids: Sequence[str]) -> ServerFlow[None]:
        """FedAvg inside each node of a level."""
        state, nodes = server.state, nodes_of(server.state, level)
        messages = {id: self.message(server, level, id) for id in ids}
        # If both levels train, a client that is alone at both trains once, at the level of groups.
        if level == "branches" and "groups" in state["models"]:
            messages = {id: message for id, message in messages.items() if not message["alone"]}
        if not messages:
            return
        sharing = {id: nodes[id] for id, message in messages.items() if not message["alone"]}
        replies = yield from Ask("train", messages, mean_asked(self.weights, self.aggregate, sharing))
        # A client that trained alone now keeps its model itself, so the server drops its start.
        models = dict(state["models"][level])
        for id in replies.keys() - sharing.keys():
            models.pop(nodes[id], None)
        models = cluster_means(models, sharing, replies, self.weights, self.aggregate)
        state["models"] = {**state["models"], level: models}

    def choose(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[None]:
        """Choose a level, its shared head and a strength; without costs the trial continues."""
        state, trained = server.state, server.state["models"]
        costs, sizes = yield from self.judged(server, ids, trained)
        solved = yield from self.with_mean_heads(server, ids)
        solved_costs = costs if solved is trained else (yield from self.judged(server, ids, solved))[0]
        # In doubt the earlier candidate wins; models with mean heads and own heads come last.
        first, *weaker = strengths(server.task)
        candidates = [(solved, first), (trained, first), *product((trained, solved), weaker)]
        judgements = {
            id: np.concatenate([solved_costs[id][:, :1], costs[id], solved_costs[id][:, 1:]], axis=1)
            for id in costs if id in solved_costs
        }  # fmt: skip
        if not judgements:
            return
        levels, table = list(trained), losses(judgements)
        enough = sum(sizes[id] for id in table) >= MIN_HOLDOUT
        level, column = best_candidate(table, sizes, levels) if enough else (levels[-1], 1)
        leads = leads_of(judgements, sizes, levels, (level, column), server.task) if enough else {}
        models, strength = candidates[column]
        state["models"] = {level: models[level]}
        state["choice"] = {"level": level, **strength._asdict(), "own_body": False, "leads": leads}
        if enough:
            row = levels.index(level)
            chosen = {id: costs[row : row + 1, column : column + 1] for id, costs in table.items()}
            yield from self.choose_body(server, ids, chosen)

    def choose_body(self, server: ServerView, ids: Sequence[str], chosen: Costs) -> ServerFlow[None]:
        """Let clients train their own bodies, with a strength of their own, if that is clearly better than the choice.

        chosen: {client id: [1, 1]}, the cost of the choice.
        """
        if not can_pull(server.initial, server.task) or not body_of(server.initial):
            return
        state = server.state
        judgements, sizes = yield from self.judged(server, ids, state["models"], own_body=True)
        column = clearly_better(losses(judgements), chosen, sizes)
        if column is not None:
            state["choice"] = {**state["choice"], **strengths(server.task)[column]._asdict(), "own_body": True}

    def with_mean_heads(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Mapping[str, Params]]]:
        """The models of all levels, each shared head replaced by the mean of its clients' own heads, if there is one.

        A shared head that has not converged would lose to the clients' own heads even if clients do not differ.
        """
        trained: dict[str, dict[str, Params]] = server.state["models"]
        if not can_pull(server.initial, server.task):
            return trained
        solved = {}
        for level in trained:
            solved[level] = yield from self.mean_heads(server, level, ids)
        return solved

    def mean_heads(self, server: ServerView, level: str, ids: Sequence[str]) -> ServerFlow[dict[str, Params]]:
        """A level's models, with the mean of its clients' own heads in place of each shared head."""
        models: dict[str, Params] = server.state["models"][level]
        nodes = nodes_of(server.state, level)
        asked = [id for id in ids if nodes[id] in models and not alone(server.state, level, id)]
        if not asked:
            return models
        node_of_client = {id: nodes[id] for id in asked}
        messages = {id: self.message(server, level, id) for id in asked}
        replies = yield from Ask("solve_head", messages, mean_asked(self.weights, self.aggregate, node_of_client))
        heads: dict[str, Params] = {node: head_of(model) for node, model in models.items()}
        heads = cluster_means(heads, node_of_client, replies, self.weights, self.aggregate)
        return {node: {**model, **heads[node]} for node, model in models.items()}

    def judged(
        self, server: ServerView, ids: Sequence[str], models: Mapping[str, Mapping[str, Params]], *,
        own_body: bool = False,
    ) -> ServerFlow[tuple[dict[str, Any], dict[str, int]]]:  # fmt: skip
        """Ask for all candidates' costs: ({client id: [levels, strengths, 2]}, {client id: held-out samples})."""
        costs: dict[str, list[Tensor]] = {id: [] for id in ids}
        sizes: dict[str, int] = {}
        for level in models:
            asked = {id: Message(**self.message(server, level, id, models), own_body=own_body) for id in ids}
            replies = yield from Ask("judge", asked)
            for id, reply in replies.items():
                costs[id].append(reply["costs"])
                sizes[id] = reply["n"]
        complete = [id for id in ids if len(costs[id]) == len(models) and sizes[id]]
        return {id: torch.stack(costs[id]).numpy() for id in complete}, {id: sizes[id] for id in complete}

    def message(
        self, server: ServerView, level: str, id: str, models: Mapping[str, Mapping[str, Params]] | None = None
    ) -> Message:
        """What a client needs to train, judge or use its model of a level; models: in place of those in training."""
        state = server.state
        model = (models or state["models"])[level].get(node_of(state, level, state["group"][id]))
        fields = {} if model is None else {"params": model}
        return Message(**fields, alone=alone(state, level, id), trial=not state["choice"])

    # -- the model that a client uses ---------------------------------------------------------------------------

    def offer(self, server: ServerView, id: str) -> Message:
        state = server.state
        if id not in state["group"]:
            return Message(params=common(server), alone=False, trial=False)
        # During the trial a client has the model of its group.
        return self._with_choice(server, self.message(server, list(state["models"])[-1], id))

    def _with_choice(self, server: ServerView, message: Message) -> Message:
        choice = server.state["choice"]
        if not choice or message["alone"]:
            return message
        return Message(**message, weights=choice["weights"], bias=choice["bias"], own_body=choice["own_body"])

    def welcome(self, server: ServerView, ids: Sequence[str]) -> ServerFlow[Mapping[str, Message]]:
        """Clients that never took part send signatures, and get the chosen level's model for their group."""
        offers = {id: self.offer(server, id) for id in ids}
        if not server.state["group"]:
            return offers
        state, level = server.state, list(server.state["models"])[-1]
        signed = yield from collect_signatures(server, server.state, sorted(ids))
        near = nearest_models(state, level, signed)
        for id, number in nearest(server, signed, self).items():
            node = "all" if level == "all" else None if number is None else node_of(state, level, number)
            model = state["models"][level].get(node, near.get(id))
            if model is not None:
                offers[id] = self._with_choice(server, Message(params=model, alone=False, trial=False))
        return offers


# -- levels and the choice --------------------------------------------------------------------------------------------


def node_of(state: dict[str, Any], level: str, group: str) -> str:
    """The node of a group at a level."""
    return "all" if level == "all" else state["branch"][group] if level == "branches" else group


def nodes_of(state: dict[str, Any], level: str) -> dict[str, str]:
    """{client id: node} at a level."""
    return {id: node_of(state, level, group) for id, group in state["group"].items()}


def alone(state: dict[str, Any], level: str, id: str) -> bool:
    """Whether a client trains by itself at a level."""
    group = state["group"][id]
    return level != "all" and state["verdict"][group] == "alone" and node_of(state, level, group) == group


def own_model(client: ClientView, message: Message) -> Params:
    """Return the model of a client that is alone: the one sent to start from, or its own."""
    return message.params if "params" in message else client.state.get("own", client.initial)


def held_out(samples: Samples) -> tuple[list[int], list[int]]:
    """Return (training rows, held-out rows): of BLOCKS blocks of persons, one in FOLD is held out.

    Blocks follow time, or the stored order if times are unknown, so that neighbours in time stay together. Their places
    are the same for all clients. A sample without a person counts as one.

    >>> held_out(Samples(torch.zeros(6, 1), torch.zeros(6)))
    ([0, 1, 3, 4, 5], [2])
    >>> held_out(Samples(torch.zeros(7, 1), torch.zeros(7), person=torch.tensor([7, 7, 5, 1, 1, 3, 4])))
    ([0, 1, 2, 5, 6], [3, 4])
    """
    _, first, unit = np.unique(samples.units(), return_index=True, return_inverse=True)
    times = samples.times()
    order = np.lexsort([first] if times is None else [first, times[first]])
    position, count = order.argsort()[unit], max(len(first), 1)
    out = (position * min(BLOCKS, count) // count) % FOLD == FOLD // 2
    return np.flatnonzero(~out).tolist(), np.flatnonzero(out).tolist()


def judgement(outputs: Tensor, targets: Tensor, task: Task) -> Tensor:
    """Return [mean loss, share of wrong classes] of outputs [n, outputs]; without classes the loss twice."""
    loss = per_sample(task)(outputs, targets).double().mean()
    wrong = (outputs.argmax(1) != targets).double().mean() if task.kind == "classification" else loss
    return torch.stack([loss, wrong])


def losses(judgements: Judgements) -> dict[str, Any]:
    """{client id: mean held-out losses [levels, columns]}."""
    return {id: values[..., 0] for id, values in judgements.items()}


def best_candidate(costs: Costs, sizes: Mapping[str, int], levels: Sequence[str]) -> tuple[str, int]:
    """Return level and column of the smallest pooled cost; in doubt, more models and the earlier column.

    In doubt: if the costs differ by at most DOUBT standard errors over clients. costs: {client id: [levels, columns]}
    mean held-out losses; sizes: held-out samples.
    """
    excess = excess_in(costs, sizes)
    columns = next(iter(costs.values())).shape[1]

    def doubted(candidate: int, best: int) -> bool:
        """Whether a candidate's cost is above the best one's by at most the doubt."""
        mean, error = excess(candidate, best)
        return mean <= DOUBT * error

    pooled = np.array([excess(candidate, 0)[0] for candidate in range(len(levels) * columns)]).reshape(-1, columns)
    best_of_level = [row * columns + int(np.argmin(pooled[row])) for row in range(len(levels))]
    level = max(row for row, candidate in enumerate(best_of_level) if doubted(candidate, int(np.argmin(pooled))))
    best = best_of_level[level]
    column = min(at for at in range(columns) if doubted(level * columns + at, best))
    return levels[level], column


def clearly_better(costs: Costs, others: Costs, sizes: Mapping[str, int]) -> int | None:
    """Return the best column of `costs`, if its pooled cost is clearly smaller than that of the best of `others`.

    Clearly: by more than SURE standard errors, over at least MIN_SURE clients. costs, others: {client id: [1,
    columns]}, for the same held-out samples; sizes: their number.
    """
    ids = costs.keys() & others.keys()
    if len(ids) < MIN_SURE:
        return None
    mine, theirs = (best_candidate({id: table[id] for id in ids}, sizes, [""])[1] for table in (costs, others))
    both = {id: np.append(costs[id][:, mine], others[id][:, theirs]) for id in ids}
    excess, error = excess_in(both, sizes)(0, 1)
    return mine if excess < -SURE * error else None


def excess_in(
    costs: Costs, sizes: Mapping[str, int], clipped: float = CLIPPED
) -> Callable[[int, int], tuple[float, float]]:
    """Return f(candidate, other) = (excess cost, its standard error), by place in the flattened table of costs.

    This share of the differences is clipped at either end, and a client's size at the median, so that a few clients
    cannot decide for all.
    """
    ids = sorted(costs)
    table = np.stack([costs[id].ravel() for id in ids])  # [clients, candidates]
    share = np.array([sizes[id] for id in ids], dtype=np.float64)
    share = np.minimum(share, np.median(share))
    share /= share.sum()

    def excess(candidate: int, other: int) -> tuple[float, float]:
        values = table[:, candidate] - table[:, other]
        values = np.clip(values, *np.quantile(values, [clipped, 1 - clipped]))
        mean = float(share @ values)
        return mean, math.sqrt(float(share**2 @ (values - mean) ** 2))

    return excess


def leads_of(
    judgements: Judgements, sizes: Mapping[str, int], levels: Sequence[str], choice: tuple[str, int], task: Task
) -> dict[str, list[float]]:
    """{figure: [lead, low, high]}: how much better the choice is than another level's best candidate, by their losses.

    `points_LEVEL`: percentage points of accuracy, in classification. `lead_LEVEL`: loss, in other tasks. low, high: a
    95 % interval over clients, Student's. Of losses it is on the clients that are not clipped, with the standard error
    of a clipped mean (Dixon and Tukey, Technometrics 1968), which is larger than the one used in the choice. Shares of
    wrong classes are not clipped: where most clients have none, all differences would be clipped to 0. With fewer than
    4 clients the result is empty.
    """
    if (count := len(judgements)) < MIN_SURE:
        return {}
    table = losses(judgements)
    by_loss = measured = excess_in(table, sizes)
    figure, unit, clipped = "lead", 1.0, CLIPPED
    if task.kind == "classification":
        figure, unit, clipped = "points", 100.0, 0.0
        measured = excess_in({id: values[..., 1].clip(0, 1) for id, values in judgements.items()}, sizes, clipped)
    free = count - 2 * int(clipped * count) - 1
    t = float(special.stdtrit(free, 0.975)) * math.sqrt(count / (count - 1)) / (1 - 2 * clipped)
    columns = next(iter(table.values())).shape[1]
    mine = levels.index(choice[0]) * columns + choice[1]
    leads = {}
    for row, level in enumerate(levels):
        if level != choice[0]:
            of_level = range(row * columns, (row + 1) * columns)
            lead, error = measured(min(of_level, key=lambda candidate: by_loss(candidate, mine)), mine)
            leads[f"{figure}_{level}"] = [unit * value for value in (lead, lead - t * error, lead + t * error)]
    return leads


def branches(tests: Tests, group: Mapping[str, str]) -> dict[str, str]:
    """{group: branch} (`Evidence.branches`); a group that is below no spread is its own branch."""
    spreads = sorted(evidence_of(tests).branches(group).items(), key=lambda item: int(item[0]))
    return {number: number if spread is None else f"branch {spread}" for number, spread in spreads}


# -- at the server: signatures, the search for groups, newcomers -----------------------------------------------------


def alpha_of_search(alpha: float, search: int) -> float:
    """Test level of search number 1, 2, ..: alpha / (search (search + 1)), so that all searches use at most alpha.

    >>> sum(alpha_of_search(0.001, search) for search in range(1, 1000)) < 0.001
    True
    """
    return alpha / (search * (search + 1))


def verdicts(server: ServerView, ids: Iterable[str], method: Kin) -> Verdicts:
    """Test these clients' signatures at the level of the last search."""
    state = server.state
    signatures = {id: state["signatures"][id] for id in ids}
    return verdicts_of(server, signatures, alpha_of_search(method.alpha, state["looks"]), method.least)


def update_groups(server: ServerView, signed: Mapping[str, Tensor], method: Kin) -> None:
    """Store these signatures; then find all groups again, or let their senders join the existing groups.

    Groups are found at first, if a client sent a new signature, and if more clients have joined than the groups were
    found from.
    """
    state = server.state
    watch_members(server, state["group"], method.alpha)
    new = [id for id in signed if id not in state["group"]]
    founders = len(state["group"]) - len(state["placed"])
    state["signatures"] = {**state["signatures"], **signed}
    if len(new) < len(signed) or len(state["placed"]) + len(new) > founders:
        _search(server, method)
    else:
        _join(server, new, method)
    server.graph = graph_of(server)


def _search(server: ServerView, method: Kin) -> None:
    """Find all groups and the levels above them, with a model to begin with, and put the levels on trial.

    If groups were trained, each group continues from the model of the old group of most of its members.
    """
    state = server.state
    state["looks"], state["placed"] = state["looks"] + 1, {}
    tested = verdicts(server, state["signatures"], method)
    before = [int(state["group"][id]) if id in state["group"] else None for id in tested.ids]
    numbers = continued(tested.labels.tolist(), before, [int(number) for number in state["verdict"]])
    mean, models = common(server), _first_models(server, tested, numbers)
    state["group"] = {id: str(numbers[label][0]) for id, label in tested.groups.items()}
    state["verdict"] = {str(number): verdict for (number, _), verdict in zip(numbers, tested.verdicts, strict=True)}
    state["tests"] = tests_of(tested)
    state["branch"] = branches(state["tests"], state["group"])
    state["models"] = {
        level: models if level == "groups" else dict.fromkeys(sorted(set(nodes_of(state, level).values())), mean)
        for level in levels_of(state, method.degrees)
    }
    _begin_trial(server, method)


def _first_models(server: ServerView, tested: Verdicts, numbers: Sequence[tuple[int, int | None]]) -> dict[str, Params]:
    """The models that the groups start from; numbers: (number, old group) of each.

    A client that stays alone, or is new and alone, keeps its model; others start from a model of the server.
    """
    state, mean = server.state, common(server)
    old = state["models"].get("groups", {})
    models: dict[str, Params] = {}
    for label, (number, parent) in enumerate(numbers):
        first = tested.members(label)[0]
        shared = first in state["group"] and not alone(state, list(state["models"])[-1], first)
        if tested.verdicts[label] != "alone" or shared or str(parent) in old:
            models[str(number)] = old.get(str(parent), mean)
    return models


def _begin_trial(server: ServerView, method: Kin) -> None:
    """Put the levels on trial in half of the rounds until the next search; with few rounds the last level is chosen."""
    state = server.state
    rounds = server.training.rounds - server.round + 1 if method.regroup_every is None else method.regroup_every
    state["trial_end"], state["choice"] = server.round - 1 + rounds // 2, {}
    if method.degrees == "groups" or rounds // 2 < MIN_TRIAL:
        level = list(state["models"])[-1]
        state["models"] = {level: state["models"][level]}
        state["choice"] = {"level": level, **SHARED._asdict(), "own_body": False, "leads": {}}


def levels_of(state: dict[str, Any], degrees: str) -> list[str]:
    """The levels that make different groups, from one model to the most; only "groups" if nothing is to be chosen."""
    if degrees == "groups":
        return ["groups"]
    count = {level: len(set(nodes_of(state, level).values())) for level in LEVELS}
    branches = ["branches"] if 1 < count["branches"] < count["groups"] else []
    return ["all", *branches, *(["groups"] if count["groups"] > 1 else [])]


def _join(server: ServerView, ids: Sequence[str], method: Kin) -> None:
    """Place newcomers in groups; no other client moves.

    A newcomer without a group joins a branch (`near_branches`), or is alone. It starts from the nearest client's model.
    """
    state = server.state
    group, verdict, branch = dict(state["group"]), dict(state["verdict"]), dict(state["branch"])
    signed = {id: state["signatures"][id] for id in ids}
    joined, near = nearest(server, signed, method), near_branches(state, signed)
    free = max(map(int, verdict)) + 1
    for id in by_content(ids, state["signatures"]):
        number = joined[id]
        if number is None:
            number, free = str(free), free + 1
            verdict[number], branch[number] = "alone", near.get(id, number)
        elif verdict[number] == "alone":
            verdict[number] = "same"
        group[id] = number
    new = {**state, "group": group, "branch": branch}
    for level, models in state["models"].items():
        first = nearest_models(state, level, signed)
        started = {node_of(new, level, group[id]): first.get(id, common(server)) for id in ids}
        new["models"] = {**new["models"], level: {**started, **models}}
    state["group"], state["verdict"], state["branch"], state["models"] = group, verdict, branch, new["models"]
    state["placed"] = {**state["placed"], **dict.fromkeys(ids, True)}


def nearest(server: ServerView, signed: Mapping[str, Tensor], method: Kin) -> dict[str, str | None]:
    """Test these newcomers against every group; return {client id: its group, or None}."""
    group, placed = server.state["group"], server.state["placed"]
    return groups_joined(verdicts(server, [id for id in group if id not in placed], method), group, signed)


def near_branches(state: dict[str, Any], signed: Mapping[str, Tensor]) -> dict[str, str]:
    """{client id: the branch of its nearest client}, for newcomers that fit into a branch.

    A newcomer fits if it is no further from this client than the branch's clients are from their nearest ones. Of
    newcomers like a branch's m clients about one in m + 1 does not fit.
    """
    founders = by_content((id for id in state["group"] if id not in state["placed"]), state["signatures"])
    branch = np.array([state["branch"][state["group"][id]] for id in founders])
    signatures = [signature_in(state["signatures"][id]) for id in founders]
    inside = np.where(branch[:, None] == branch, apart(signatures), math.inf)
    np.fill_diagonal(inside, math.inf)
    to_nearest = inside.min(1)
    # Groups that are no part of a branch have tests instead.
    reach = {name: to_nearest[branch == name].max() for name in set(branch) - set(state["verdict"])}
    near = {}
    for id, distances in zip(signed, apart([signature_in(data) for data in signed.values()], signatures), strict=True):
        client = int(distances.argmin())
        if distances[client] <= reach.get(branch[client], -math.inf) < math.inf:
            near[id] = str(branch[client])
    return near


def nearest_models(state: dict[str, Any], level: str, signed: Mapping[str, Tensor]) -> dict[str, Params]:
    """{client id: the model of the nearest client that shares one at this level}; empty if nobody shares one."""
    nodes, models = nodes_of(state, level), state["models"][level]
    sharing = by_content(
        (id for id in nodes if nodes[id] in models and not alone(state, level, id)), state["signatures"]
    )
    if not (sharing and signed):
        return {}
    signatures = [signature_in(state["signatures"][id]) for id in sharing]
    distances = apart([signature_in(data) for data in signed.values()], signatures)
    return {id: models[nodes[sharing[row.argmin()]]] for id, row in zip(signed, distances, strict=True)}


def common(server: ServerView) -> Params:
    """Return the mean of the models in use, weighted by their clients: the model for unknown clients."""
    state = server.state
    if not state["models"]:
        return server.initial
    level = list(state["models"])[-1]
    nodes = {id: node for id, node in nodes_of(state, level).items() if not alone(state, level, id)}
    shared = {node: model for node, model in state["models"][level].items() if node in set(nodes.values())}
    return mean_of_clusters(shared, nodes) if shared else server.initial


# -- the records ------------------------------------------------------------------------------------------------------


def graph_of(server: ServerView) -> Graph:
    """Weights of 1 inside the groups of the tests; each client's verdict, and the tests behind the groups."""
    state = server.state
    graph = members_graph(state["group"], sorted(state["verdict"], key=int), server.round)
    verdicts = {id: state["verdict"][number] for id, number in state["group"].items()}
    return graph.tested(verdicts, evidence_of(state["tests"]))


def _finite(value: float) -> float | None:
    return value if value < math.inf else None


def figures(state: dict[str, Any]) -> dict[str, float | None]:
    """For the records: groups of several clients, clients alone, the choice, the smallest p, leads (`leads_of`)."""
    p = [value for node in state["tests"]["tree"].values() for value in node["p"].values()]
    choice = state["choice"] or {"level": None, **SHARED._asdict(), "own_body": None, "leads": {}}
    values = {
        "groups": sum(verdict != "alone" for verdict in state["verdict"].values()),
        "alone": sum(state["verdict"][number] == "alone" for number in state["group"].values()),
        "level": None if choice["level"] is None else LEVELS.index(choice["level"]),
        "pull_weights": _finite(choice["weights"]),
        "pull_bias": _finite(choice["bias"]),
        "smallest_p": min(p, default=None),
        "own_body": None if choice["own_body"] is None else float(choice["own_body"]),
    }
    for name, lead in choice["leads"].items():
        values |= dict(zip((name, f"{name}_low", f"{name}_high"), lead, strict=True))
    return values
