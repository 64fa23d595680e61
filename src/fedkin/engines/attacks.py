"""Adversarial clients: they train like others, but their samples, results or messages are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedkin import codec
from fedkin.engines.results import Outbox
from fedkin.errors import ConfigError, nearest
from fedkin.federation import Client, Federation, Samples
from fedkin.flow import AnyMethod, Fitted, Message, Params
from fedkin.keys import rng
from fedkin.learning.net import Net

# The attacks with their default strengths; None: without a strength.
ATTACKS: dict[str, float | None] = {
    "sign-flip": 1.0, "shuffle": 1.0, "noise": 1.0, "scale": 10.0, "label-flip": 1.0, "model-replacement": 1.0,
    "sybil": None, "alie": 1.5, "ipm": 2.0, "copy": None, "group-mean": None, "mimic": 0.1,
}  # fmt: skip
# Attacks that name the fields of messages on which they act.
FORGERS = ("copy", "group-mean", "mimic")
_FITS = ("sign-flip", "shuffle", "noise", "scale", "model-replacement")


@dataclass(frozen=True)
class Attack:
    """An attack: the adversaries' share of the clients, its strength, and for a forger the fields that it forges.

    On an update u = trained - start. sign-flip: -strength u; scale: strength u; shuffle: the entries of each tensor of
    u in random order, times strength; noise: u + strength |u| e, with a random unit vector e for each tensor.
    model-replacement: u / (share strength), learned from flipped labels, so that the mean of all becomes the
    adversaries' model (strength: the server's learning rate; Bagdasaryan et al., AISTATS 2020).

    On samples. label-flip: label y becomes classes - 1 - y, for the share `strength` of the training samples. sybil:
    all adversaries have the samples of one of them.

    On messages, in collusion: see `Forgery`. alie: mean - strength std of the colluders' updates (Baruch
    et al., NeurIPS 2019); ipm: -strength times their mean (Xie et al., UAI 2019); copy: a victim's fields; group-mean:
    their mean over the victim's group; mimic: copy, and noise of strength times its length in each tensor of floats.
    """

    kind: str
    share: float
    strength: float = 1.0
    fields: tuple[str, ...] = ()

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Read "KIND:SHARE[:STRENGTH]", or for a forger "KIND:SHARE:FIELD+FIELD[:STRENGTH]"; raises ConfigError.

        >>> Attack.parse("scale:0.1:5")
        Attack(kind='scale', share=0.1, strength=5.0, fields=())
        >>> Attack.parse("copy:0.2:anchors+classes").fields
        ('anchors', 'classes')
        """
        kind, *rest = map(str.strip, spec.split(":"))
        if kind not in ATTACKS:
            raise ConfigError(f"run.adversaries: no attack {kind!r}; {nearest(kind, [*ATTACKS, 'none'])}")
        forges, usual = kind in FORGERS, ATTACKS[kind]
        try:
            fields = tuple(rest.pop(1).split("+")) if forges else ()
            share, *given = map(float, rest)
            if len(given) > (usual is not None) or "" in fields:
                raise ValueError(spec)
        except (IndexError, ValueError):
            form = "KIND:SHARE:FIELD+FIELD" if forges else "KIND:SHARE"
            ways = form if usual is None else f"{form} or {form}:STRENGTH"
            raise ConfigError(f"run.adversaries: {spec!r}: expected {ways}") from None
        attack = cls(kind, share, given[0] if given else usual or 1.0, fields)
        attack._check_range(spec)
        return attack

    def _check_range(self, spec: str) -> None:
        if not 0 < self.share < 1 or not 0 < self.strength < float("inf"):
            raise ConfigError(
                f"run.adversaries: {spec!r}: SHARE must be above 0 and below 1, STRENGTH above 0 and finite"
            )
        if self.kind == "label-flip" and self.strength > 1:
            raise ConfigError(f"run.adversaries: {spec!r}: STRENGTH is a share of the labels, at most 1")

    def __call__(self, fitted: Fitted, start: Params, draw: np.random.Generator) -> Fitted:
        """Return the fit as changed by the adversary; counters and other integer buffers stay the same."""
        if self.kind not in _FITS:
            return fitted
        params = dict(fitted.params)
        for name, tensor in fitted.params.items():
            if tensor.is_floating_point():
                params[name] = self._changed(tensor, start[name].to(tensor.dtype), draw)
        return replace(fitted, params=params)

    def _changed(self, tensor: Tensor, start: Tensor, draw: np.random.Generator) -> Tensor:
        update = tensor - start
        if self.kind == "shuffle":
            order = torch.from_numpy(draw.permutation(update.numel()))
            update = update.flatten()[order].reshape(update.shape) * self.strength
        elif self.kind == "noise":
            update = _blurred(update, self.strength, draw)
        elif self.kind == "model-replacement":
            update = update / (self.share * self.strength)
        else:
            update = update * (-self.strength if self.kind == "sign-flip" else self.strength)
        return start + update


@dataclass(frozen=True)
class Attacks:
    """The attacks of a run: all by the same clients, and applied one after another; there may be none."""

    each: tuple[Attack, ...]

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Read "none", or attacks separated by commas, all with the same share; raises ConfigError.

        >>> [attack.kind for attack in Attacks.parse("label-flip:0.2, copy:0.2:signature").each]
        ['label-flip', 'copy']
        """
        if spec == "none":
            return cls(())
        parts = [part.strip() for part in spec.split(",")]
        if "none" in parts:
            raise ConfigError(f"run.adversaries: {spec!r}: 'none' stands alone, or not at all")
        each = tuple(map(Attack.parse, parts))
        if len({attack.share for attack in each}) != 1:
            raise ConfigError(f"run.adversaries: {spec!r}: several attacks are by the same clients: give one SHARE")
        return cls(each)

    def of(self, *kinds: str) -> list[Attack]:
        """Return the attacks of these kinds."""
        return [attack for attack in self.each if attack.kind in kinds]

    def clients(self, ids: Sequence[str], seed: int) -> frozenset[str]:
        """Draw the adversaries, keyed by the seed: round(share * n) of these clients, at least one, never all."""
        if not self.each:
            return frozenset()
        names = sorted(ids)
        count = min(max(1, round(self.each[0].share * len(names))), len(names) - 1)
        return frozenset(names[k] for k in rng(seed, "adversaries").permutation(len(names))[:count])

    def __call__(self, fitted: Fitted, start: Params, draw: np.random.Generator) -> Fitted:
        """Return the fit as changed by the adversary."""
        for attack in self.each:
            fitted = attack(fitted, start, draw)
        return fitted

    def check(self, method: AnyMethod, federation: Federation) -> None:
        """Raise ConfigError for an attack that is impossible with this method or federation."""
        for attack in self.of("label-flip", "model-replacement"):
            federation.task.need_labels("run.adversaries", repr(attack.kind))
        if self.of("group-mean") and federation.planted is None:
            raise ConfigError("run.adversaries: 'group-mean' needs known groups of the clients, and these have none")
        if (names := _declared_names(method)) is None:
            return
        for name in (name for attack in self.of(*FORGERS) for name in attack.fields):
            if name not in names:
                what = f"no message of {method.name!r} has a field {name!r}; {nearest(name, sorted(names))}"
                raise ConfigError(f"run.adversaries: {what}")


def _declared_names(method: AnyMethod) -> set[str] | None:
    """Return the names of the fields of all messages; None if a phase declares no fields."""
    names = set[str]()
    for phase in method.phases():
        if (sets := method.declared(phase)) is None:
            return None
        names.update(*sets)
    return names


# -- samples -----------------------------------------------------------------------------------------------------------


def poisoned(federation: Federation, attacks: Attacks, adversaries: frozenset[str], seed: int) -> Federation:
    """Return the federation with the adversaries' samples changed by their attacks.

    sybil: all have the samples of the adversary with the first id, also when its data drift. label-flip,
    model-replacement: y becomes classes - 1 - y, for each training sample with the probability of label-flip's
    strength.
    """
    flips, same = attacks.of("label-flip", "model-replacement"), bool(attacks.of("sybil"))
    if not flips and not same:
        return federation
    first = federation[min(adversaries)]
    share = min(attack.strength if attack.kind == "label-flip" else 1.0 for attack in flips) if flips else 0.0

    def changed(client: Client) -> Client:
        if client.id not in adversaries:
            return client
        attacked = replace(first, id=client.id) if same else client
        if not share:
            return attacked
        flip = partial(_flipped, classes=federation.task.classes, share=share, seed=seed, id=client.id)
        changes = tuple(replace(change, train=flip(change.train)) for change in attacked.changes)
        return replace(attacked, train=flip(attacked.train), changes=changes)

    return type(federation)([changed(client) for client in federation.values()], federation.task, federation.name)


def _flipped(samples: Samples, classes: int, share: float, seed: int, id: str) -> Samples:
    samples = samples.own()
    hit = torch.from_numpy(rng(seed, id, "label flip").random(len(samples)) < share)
    return replace(samples, y=torch.where(hit, classes - 1 - samples.y, samples.y))


class Forgery:
    """Changes the messages of adversaries, which know the messages of the same exchange.

    Colluders (alie, ipm) know each other's honest updates. An update is the difference of sent parameters to the
    nearest parameters of the same names and shapes in the request; if there are none, to the net's initial parameters.

    Forgers (copy, group-mean, mimic) know the messages of a victim and of its planted group. The victim is the first
    honest client in a keyed order; if it does not take part in the exchange, the next one of the same group, or of
    all clients if the group is unknown. Forgers copy the named fields; a message without such fields stays as it is.
    """

    def __init__(
        self, attacks: Attacks, adversaries: frozenset[str], clients: Federation, seed: int,
        net_of: Callable[[str], Net],
    ) -> None:  # fmt: skip
        self.attacks, self.adversaries, self.seed, self.net_of = attacks, adversaries, seed, net_of
        names = sorted(set(clients.seen) - adversaries)
        order = [names[k] for k in rng(seed, "victims").permutation(len(names))]
        self.victims = [id for id in order if clients[id].group == clients[order[0]].group]

    def replies(
        self, phase: str, asked: Mapping[str, Message], replies: Mapping[str, Message], round: int
    ) -> dict[str, Message]:
        """Return the replies to a server's request, as changed by the adversaries."""
        forged = dict(replies)
        attackers = sorted(self.adversaries & set(forged))
        victims = [forged[id] for id in self.victims if id in forged]
        for attack in self.attacks.each if attackers else ():
            if attack.kind in FORGERS:
                forged |= {id: self._forged(attack, forged[id], victims, (id, round, phase)) for id in attackers}
            elif attack.kind in ("alie", "ipm"):
                forged |= self._colluded(attack, {id: forged[id] for id in attackers}, asked)
        return forged

    def posts(self, posts: Mapping[str, Outbox], round: int, turn: int) -> dict[str, Outbox]:
        """Return the messages of peers to their neighbours, as changed by the adversaries."""
        forged = dict(posts)
        for id in sorted(self.adversaries & set(posts)):
            there = [posts[v].messages for v in self.victims if v in posts and posts[v].phase == posts[id].phase]
            sent = dict(posts[id].messages)
            for attack in self.attacks.of(*FORGERS):
                for receiver in sorted(sent):
                    seen = [box.get(receiver, box[min(box)]) for box in there if box]
                    sent[receiver] = self._forged(attack, sent[receiver], seen, (id, round, f"{turn} to {receiver}"))
            forged[id] = replace(posts[id], messages=sent)
        for attack in self.attacks.of("alie", "ipm"):
            forged |= self._colluding_peers(attack, forged)
        return forged

    def _colluding_peers(self, attack: Attack, posts: Mapping[str, Outbox]) -> dict[str, Outbox]:
        """Return the colluders' forged outboxes; changes to a colluder's first message apply to all its messages."""
        boxes = {id: posts[id] for id in sorted(self.adversaries & set(posts)) if posts[id].messages}
        forged: dict[str, Outbox] = {}
        for phase in sorted({box.phase for box in boxes.values()}):
            first = {id: box.messages[min(box.messages)] for id, box in boxes.items() if box.phase == phase}
            for id, sent in self._colluded(attack, first, {}).items():
                changed = {name: value for name, value in sent.items() if value is not first[id][name]}
                shared = {to: Message(**{**message, **changed}) for to, message in boxes[id].messages.items()}
                forged[id] = replace(boxes[id], messages=shared)
        return forged

    def _forged(self, attack: Attack, sent: Message, victims: Sequence[Message], key: tuple[str, int, str]) -> Message:
        """Return this message with the victim's fields in place of its own."""
        if not victims:
            return sent
        both = sent.keys() & victims[0].keys()
        fields = {name: victims[0][name] for name in attack.fields if name in both}
        for name, value in fields.items():
            if attack.kind == "group-mean":
                others = [victim[name] for victim in victims if name in victim]
                fields[name] = _mean([other for other in others if _form(other) == _form(value)])
            elif attack.kind == "mimic":
                fields[name] = _blurred(value, attack.strength, rng(self.seed, *key, name, "mimic"))
        return Message(**{**sent, **fields}) if fields else sent

    def _colluded(
        self, attack: Attack, sent: Mapping[str, Message], asked: Mapping[str, Message]
    ) -> dict[str, Message]:
        """Return the colluders' messages with parameters that they have agreed on."""
        forged = dict(sent)
        for name in sorted(set[str]().union(*sent.values())):
            alike: dict[Any, list[str]] = {}
            for id, message in sent.items():
                if name in message and self._is_params(id, message[name]):
                    alike.setdefault(_form(message[name]), []).append(id)
            for ids in alike.values():
                starts = {id: self._start(id, sent[id][name], asked.get(id, Message())) for id in ids}
                for id, params in _common_update(attack, {id: sent[id][name] for id in ids}, starts).items():
                    forged[id] = Message(**{**forged[id], name: params})
        return forged

    def _is_params(self, id: str, value: Any) -> bool:
        """Whether these are parameters of the client's net."""
        initial = self.net_of(id).initial
        return isinstance(value, Mapping) and bool(value) and _covers(initial, value)

    def _start(self, id: str, params: Params, asked: Message) -> Params:
        """Return the parameters from which these were trained, as far as the request shows."""
        near = [tree for tree in _trees(asked) if _covers(tree, params)]
        if not near:
            return self.net_of(id).initial
        return min(near, key=lambda tree: sum(float((params[n] - tree[n]).double().square().sum()) for n in params))


def _common_update(attack: Attack, params: Mapping[str, Params], starts: Mapping[str, Params]) -> dict[str, Params]:
    """Return start + the agreed update for each colluder; integer buffers stay unchanged."""
    forged: dict[str, dict[str, Tensor]] = {id: dict(each) for id, each in params.items()}
    for name, first in next(iter(params.values())).items():
        if not first.is_floating_point():
            continue
        updates = torch.stack([each[name] - starts[id][name] for id, each in params.items()])
        mean = updates.mean(0)
        if attack.kind == "ipm":
            common = -attack.strength * mean
        else:
            common = mean - attack.strength * updates.std(0, correction=0)
        for id, each in forged.items():
            each[name] = starts[id][name] + common
    return {**forged}


def _trees(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all dicts in a message."""
    for value in tree.values():
        if isinstance(value, Mapping):
            yield value
            yield from _trees(value)


def _covers(tree: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Whether the tree has a tensor of the same shape under each name of `params`."""
    return all(
        isinstance(leaf, Tensor) and isinstance(tree.get(name), Tensor) and tree[name].shape == leaf.shape
        for name, leaf in params.items()
    )


def _form(value: Any) -> Any:
    """Return a key that is equal for values of one structure with tensors of the same shapes and types."""
    if isinstance(value, Tensor):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, Mapping):
        return tuple((name, _form(item)) for name, item in value.items())
    return type(value).__name__


def _blurred(value: Any, strength: float, draw: np.random.Generator) -> Any:
    """Return the value with noise in each tensor of floats, of `strength` times the tensor's length."""

    def blur(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        e = torch.from_numpy(draw.normal(size=tuple(leaf.shape))).to(leaf)
        return torch.add(leaf, strength * leaf.norm() / e.norm().clamp(min=1e-12) * e)

    return codec.mapped(value, blur)


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of the float tensors at each place of the trees, and the first of all other values."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _mean([value[name] for value in values]) for name in first}
    return torch.stack(list(values)).mean(0) if isinstance(first, Tensor) and first.is_floating_point() else first
