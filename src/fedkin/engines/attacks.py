"""What adversaries do beyond their own training: they poison samples and forge messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from fedkin.engines.adversaries import FORGERS, Attack, Attacks
from fedkin.engines.client_side import Outbox
from fedkin.engines.setup import Setup
from fedkin.federation import Client, Samples
from fedkin.flow import Message, Params
from fedkin.keys import rng


def poisoned(setup: Setup, attacks: Attacks | None, adversaries: frozenset[str]) -> Setup:
    """Return the setup in which the adversaries have the samples that their attacks give them.

    sybil: all have those of the adversary with the first id, also when its data drift. label-flip, model-replacement:
    y becomes classes - 1 - y, for each training sample with the probability of label-flip's strength.
    """
    flips = attacks.of("label-flip", "model-replacement") if attacks else []
    same = bool(attacks and attacks.of("sybil"))
    if not flips and not same:
        return setup
    federation, seed = setup.federation, setup.seed
    first = federation[min(adversaries)]
    share = min(attack.strength if attack.kind == "label-flip" else 1.0 for attack in flips) if flips else 0.0

    def changed(client: Client) -> Client:
        if client.id not in adversaries:
            return client
        made = replace(first, id=client.id) if same else client
        return _each(made, lambda samples: _flipped(samples, federation.task.classes, share, seed, client.id))

    clients = [changed(client) for client in federation.values()]
    return replace(setup, clients=type(federation)(clients, federation.task, federation.name))


def _each(client: Client, change: Callable[[Samples], Samples]) -> Client:
    """Return the client with all its training samples changed."""
    changes = tuple(replace(other, train=change(other.train)) for other in client.changes)
    return replace(client, train=change(client.train), changes=changes)


def _flipped(samples: Samples, classes: int, share: float, seed: int, id: str) -> Samples:
    if not share:
        return samples
    own = samples.own()
    hit = torch.from_numpy(rng(seed, id, "label flip").random(len(own)) < share)
    return replace(own, y=torch.where(hit, classes - 1 - own.y, own.y))


Messages = Mapping[str, Message]


class Forgery:
    """What adversaries make of their messages, knowing those of the same exchange.

    Colluders (alie, ipm) know each other's honest updates of the parameters that they send: the difference to what the
    request holds, of its parameters of these names and shapes the nearest ones, or else to the net's first parameters.

    Forgers (copy, group-mean, mimic) know the message of a victim, or of its planted group: the first honest client in
    a keyed order, if it takes part in the exchange, or else the next of its group, or of all where none is known. They
    take over the named fields; a message without such a field stays as it is.
    """

    def __init__(self, setup: Setup, attacks: Attacks, adversaries: frozenset[str], honest: Mapping[str, str]) -> None:
        """honest: the planted group of each honest client, "" where none is known."""
        self.setup, self.attacks, self.adversaries = setup, attacks, adversaries
        names = sorted(honest)
        order = [names[k] for k in rng(setup.seed, "victims").permutation(len(names))]
        self.victims = [id for id in order if honest[id] == honest[order[0]]]

    @classmethod
    def of(cls, setup: Setup, attacks: Attacks | None, adversaries: frozenset[str]) -> Self | None:
        """Return the forgery of a run; None if its adversaries forge no messages."""
        if not attacks or not attacks.of("alie", "ipm", *FORGERS):
            return None
        honest = {id: setup.federation[id].group or "" for id in setup.federation.seen if id not in adversaries}
        return cls(setup, attacks, adversaries, honest)

    def replies(self, phase: str, asked: Messages, replies: Messages, round: int) -> dict[str, Message]:
        """Return the replies to a server's request as they are sent."""
        made = dict(replies)
        own = sorted(self.adversaries & set(made))
        victims = [made[id] for id in self.victims if id in made]
        for attack in self.attacks.each if own else ():
            if attack.kind in FORGERS:
                made |= {id: self._forged(attack, made[id], victims, (id, round, phase)) for id in own}
            elif attack.kind in ("alie", "ipm"):
                made |= self._colluded(attack, {id: made[id] for id in own}, asked)
        return made

    def posts(self, posts: Mapping[str, Outbox], round: int, turn: int) -> dict[str, Outbox]:
        """Return the messages of peers to their neighbours as they are sent."""
        made = dict(posts)
        for id in sorted(self.adversaries & set(posts)):
            there = [posts[v].messages for v in self.victims if v in posts and posts[v].phase == posts[id].phase]
            sent = dict(posts[id].messages)
            for attack in self.attacks.of(*FORGERS):
                for receiver in sorted(sent):
                    seen = [box.get(receiver, box[min(box)]) for box in there if box]
                    sent[receiver] = self._forged(attack, sent[receiver], seen, (id, round, f"{turn} to {receiver}"))
            made[id] = Outbox(posts[id].phase, sent)
        for attack in self.attacks.of("alie", "ipm"):
            made |= self._colluding_peers(attack, made)
        return made

    def _colluding_peers(self, attack: Attack, posts: Mapping[str, Outbox]) -> dict[str, Outbox]:
        """Each colluder's first message stands for all of its messages that are equal to it, or alike in form."""
        own = {id: posts[id] for id in sorted(self.adversaries & set(posts)) if posts[id].messages}
        made: dict[str, Outbox] = {}
        for phase in sorted({box.phase for box in own.values()}):
            boxes = {id: box.messages for id, box in own.items() if box.phase == phase}
            sent = self._colluded(attack, {id: box[min(box)] for id, box in boxes.items()}, {})
            for id, box in boxes.items():
                changed = {name: sent[id][name] for name in sent[id] if sent[id][name] is not box[min(box)][name]}
                made[id] = Outbox(phase, {to: Message(**{**message, **changed}) for to, message in box.items()})
        return made

    def _forged(self, attack: Attack, own: Message, victims: Sequence[Message], key: tuple[str, int, str]) -> Message:
        """Return this message with the victim's fields in place of its own."""
        fields = {name: victims[0][name] for name in attack.fields if name in own and name in victims[0]} \
            if victims else {}  # fmt: skip
        for name, value in fields.items():
            if attack.kind == "group-mean":
                like = [v[name] for v in victims if name in v and _form(v[name]) == _form(value)]
                fields[name] = _together(like)
            elif attack.kind == "mimic":
                draw = rng(self.setup.seed, *key, name, "mimic")

                def blurred(leaf: Tensor, draw: Any = draw) -> Tensor:
                    e = torch.from_numpy(draw.normal(size=tuple(leaf.shape))).to(leaf)
                    return torch.add(leaf, attack.strength * leaf.norm() / e.norm().clamp(min=1e-12) * e)

                fields[name] = _mapped(value, blurred)
        return Message(**{**own, **fields}) if fields else own

    def _colluded(self, attack: Attack, own: Messages, asked: Messages) -> dict[str, Message]:
        """Return the colluders' messages with parameters that they have agreed on."""
        made = dict(own)
        for name in sorted({name for message in own.values() for name in message}):
            alike: dict[Any, list[str]] = {}
            for id, message in own.items():
                if name in message and self._is_params(id, message[name]):
                    alike.setdefault(_form(message[name]), []).append(id)
            for ids in alike.values():
                starts = {id: self._start(id, own[id][name], asked.get(id, Message())) for id in ids}
                for id, params in _agreed(attack, {id: own[id][name] for id in ids}, starts).items():
                    made[id] = Message(**{**made[id], name: params})
        return made

    def _is_params(self, id: str, value: Any) -> bool:
        """Whether these are parameters of the client's net."""
        initial = self.setup.net_of(id).initial
        return isinstance(value, Mapping) and bool(value) and _covers(initial, value)

    def _start(self, id: str, params: Params, asked: Message) -> Params:
        """Return what these parameters were trained from, as far as the request tells."""
        near = [found for found in _trees(asked) if _covers(found, params)]
        if not near:
            return self.setup.net_of(id).initial
        return min(near, key=lambda found: sum(float((params[n] - found[n]).double().square().sum()) for n in params))


def _agreed(attack: Attack, params: Mapping[str, Params], starts: Mapping[str, Params]) -> dict[str, Params]:
    """Return start + what the colluders have agreed on, for each of them; integer buffers stay."""
    made: dict[str, dict[str, Tensor]] = {id: dict(own) for id, own in params.items()}
    for name, first in next(iter(params.values())).items():
        if not first.is_floating_point():
            continue
        updates = torch.stack([own[name] - starts[id][name] for id, own in params.items()])
        mean = updates.mean(0)
        if attack.kind == "ipm":
            common = -attack.strength * mean
        else:
            common = mean - attack.strength * updates.std(0, correction=0)
        for id, own in made.items():
            own[name] = starts[id][name] + common
    return {**made}


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


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the value with its tensors of floats changed."""
    if isinstance(value, Mapping):
        return {name: _mapped(item, change) for name, item in value.items()}
    return change(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def _together(values: Sequence[Any]) -> Any:
    """Return the mean of tensors of floats, at each place; of all else the first."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _together([value[name] for value in values]) for name in first}
    return torch.stack(list(values)).mean(0) if isinstance(first, Tensor) and first.is_floating_point() else first
