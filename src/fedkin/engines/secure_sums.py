"""Secure sums: the server learns the weighted mean of a group's parameters, and nothing else about a member's.

Bonawitz et al., CCS 2017, in the form for a server that may lie. In a group of more than `NEIGHBOURS` members, each
member masks and shares with that many others, as in Bell et al., CCS 2020. One sum takes five requests to the members:

    secure.keys       send two fresh public keys, signed
    secure.shares     share a secret seed and a private key among the neighbours, encrypted
    secure.masked     run the phase; send w x + mask(seed) + sum over neighbours of +-mask(agreed secret), modulo 2^64
        secure.survivors  sign the list of the members whose masked numbers arrived
    secure.unmask     send shares of the survivors' seeds, and of the private keys of the others

A member sends its shares only if enough members have signed the same list, so that the server cannot get both the seed
and the private key of a member. `docs/privacy.md` says what this guarantees, and what not.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedkin.codec import bytes_of, tensor_of
from fedkin.engines import masks
from fedkin.engines.masks import KEY_BYTES, SHARE_BYTES, FixedPoint, KeyPair, Words, digest, joined, mask, shares_of
from fedkin.errors import ConfigError, MethodError
from fedkin.flow import Mean, Message, Method, Params
from fedkin.forms import Bytes, Each, Fields, Integer, Shaped, Weights
from fedkin.learning.aggregate import as_params
from fedkin.learning.net import Net

STEPS = KEYS, SHARES, MASKED, SURVIVORS, UNMASK = (
    "secure.keys", "secure.shares", "secure.masked", "secure.survivors", "secure.unmask",
)  # fmt: skip
NEIGHBOURS = 50  # number of others with which each member of a larger group masks and shares
_SIGNATURE = 1 << 14  # bytes of a signature with its certificates
_SEALED = 2 * SHARE_BYTES + 28
_KEY = Shaped(KEY_BYTES, dtype=torch.uint8)


class Signatures(Protocol):
    """How a member signs data, and checks the signatures of others."""

    def sign(self, id: str, data: bytes) -> bytes:
        """Return this member's signature of the data."""

    def holds(self, id: str, data: bytes, signature: bytes) -> bool:
        """Return whether this is a valid signature of the data by member `id`."""


class Unsigned:
    """No signatures, for participants without certificates: the server is trusted to pass on keys unchanged."""

    def sign(self, id: str, data: bytes) -> bytes:
        """Return a placeholder."""
        return b"-"

    def holds(self, id: str, data: bytes, signature: bytes) -> bool:
        """Return True for any signature."""
        return True


class MemoryKeys:
    """Signatures in a simulation, where the keys of all members are in one process."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}

    def sign(self, id: str, data: bytes) -> bytes:
        """Return a digest of the member's key and the data."""
        return digest(self.keys.setdefault(id, secrets.token_bytes(KEY_BYTES)), data)

    def holds(self, id: str, data: bytes, signature: bytes) -> bool:
        """Return whether the member with this id has signed the data."""
        return id in self.keys and self.sign(id, data) == signature


# -- what may be summed -----------------------------------------------------------------------------------------------


def inner(message: Mapping[str, Any]) -> tuple[str, Message]:
    """Return the phase that a request for masked numbers runs, and the phase's message."""
    return str(message["phase"]), Message(**message["message"])


def check_phase(method: Method, phase: str, mean: Mean | None) -> None:
    """Raise ConfigError for a phase whose replies would show parameters of single clients to the server."""
    fields = _parameter_fields(method, phase)
    summed = set() if mean is None else {mean.field}
    open_fields = "fields that it does not declare" if fields is None else ", ".join(sorted(fields - summed))
    if open_fields:
        raise ConfigError(
            f"privacy.secure_sums: method {method.name!r} needs {open_fields} of each client by itself in phase "
            f"{phase!r}, and only sums can be had; choose a method of means inside groups that are fixed before "
            "training (docs/privacy.md lists them), with aggregate = 'mean', or leave secure_sums out"
        )


def check_plain(method: Method, phase: str, reply: Mapping[str, Any]) -> None:
    """Raise MethodError if a client's outgoing reply has unmasked parameters."""
    fields = _parameter_fields(method, phase)
    names = [name for name in reply if fields is None or name in fields]
    if names:
        raise MethodError(f"phase {phase!r}: {names[0]} leaves a client only in secure sums; it was not sent")


def _parameter_fields(method: Method, phase: str) -> set[str] | None:
    """Return the names of the fields of a phase that are parameters; None if the phase declares no fields."""
    sets = method.declared(phase)
    return None if sets is None else {name for fields in sets for name, form in fields.items() if form.is_parameters}


def declared(method: Method, step: str, request: Mapping[str, Any], net: Net) -> Sequence[Fields]:
    """Return the fields that a reply to a step may have."""
    if step == KEYS:
        return [{"cipher": _KEY, "mask": _KEY, "size": Integer(1), "signature": Bytes(_SIGNATURE)}]
    if step == SHARES:
        return [{"commitment": _KEY, "shares": Each(Shaped(_SEALED, dtype=torch.uint8))}]
    if step == SURVIVORS:
        return [{"signature": Bytes(_SIGNATURE)}]
    if step == UNMASK:
        share = Each(Shaped(SHARE_BYTES, dtype=torch.uint8))
        return [{"seeds": share, "keys": share}]
    phase, _ = inner(request)
    return [_masked_fields(fields, str(request["field"]), net) for fields in method.declared(phase) or ()]


def _masked_fields(fields: Fields, field: str, net: Net) -> Fields:
    form = fields[field].bare
    assert isinstance(form, Weights)
    count = sum(net.initial[name].numel() for name in form.names(net) if net.initial[name].is_floating_point())
    rest = {name: other for name, other in fields.items() if name != field}
    counters = Weights(part=lambda net: [n for n in form.names(net) if not net.initial[n].is_floating_point()])
    more = {"counters": counters} if counters.names(net) else {}
    return {**rest, **more, "masked": Shaped(count, dtype=torch.int64)}


# -- the graph of neighbours ------------------------------------------------------------------------------------------


def neighbours(count: int, index: int, transcript: bytes) -> list[int]:
    """Return the places (indices) of a member's neighbours: all others, or the `NEIGHBOURS` nearest on a random ring.

    transcript: a digest of all members' signed keys, which determines the order of the ring.
    """
    if count <= NEIGHBOURS + 1:
        return [other for other in range(count) if other != index]
    ring = sorted(range(count), key=lambda each: digest(transcript, str(each).encode()))
    here = ring.index(index)
    return sorted(ring[(here + step) % count] for step in range(-NEIGHBOURS // 2, NEIGHBOURS // 2 + 1) if step)


def threshold(neighbours: int) -> int:
    """Return how many shares recover a secret: more than two thirds of those of a member and its neighbours."""
    return 2 * (neighbours + 1) // 3 + 1


class _KeyList:
    """The public keys of all members of a sum, in the order of their ids, as every member receives them."""

    def __init__(self, session: str, names: Sequence[str], cipher: bytes, mask: bytes, sizes: Sequence[int]) -> None:
        self.session, self.names, self.sizes = session, list(names), list(sizes)
        self.cipher, self.mask = _cut(cipher), _cut(mask)
        lengths = {len(self.names), len(self.sizes), len(self.cipher), len(self.mask)}
        if len(lengths) > 1 or self.names != sorted(set(self.names)) or min(self.sizes, default=0) < 1:
            raise MethodError("a list of keys that is not one key of each kind for each member")
        self.transcript = digest(session.encode(), *(self.statement(index) for index in range(len(self.names))))
        self.fixed = FixedPoint(sum(self.sizes))

    def statement(self, index: int) -> bytes:
        """Return the digest that a member signs for its keys."""
        return key_statement(self.session, self.names[index], self.cipher[index], self.mask[index], self.sizes[index])

    def survivors_statement(self, survivors: Sequence[int]) -> bytes:
        """Return the digest that members sign for the list of survivors."""
        return digest(b"fedkin survivors", self.transcript, repr(list(survivors)).encode())

    def near(self, index: int) -> list[int]:
        """Return the places of a member's neighbours."""
        return neighbours(len(self.names), index, self.transcript)


def key_statement(session: str, id: str, cipher: bytes, mask: bytes, size: int) -> bytes:
    """Return the digest that a member signs for its keys in a sum."""
    return digest(b"fedkin keys", session.encode(), id.encode(), cipher, mask, str(size).encode())


def _cut(data: bytes) -> list[bytes]:
    return [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]


def _signed_mask(pair: KeyPair, index: int, other: int, public: bytes, session: str, count: int) -> Words:
    """Return the mask that the member at `index` adds for its neighbour `other`, which adds the opposite."""
    words = mask(pair.agreed(public, b"mask " + session.encode()), count)
    return words if index < other else -words


# -- a member ---------------------------------------------------------------------------------------------------------


class SumMember:
    """One client's side of secure sums. Its secrets are new for each sum, and stay in memory.

    least: the fewest members of a sum in which it takes part. size: its number of training samples, the largest weight.
    """

    def __init__(self, id: str, size: int, signatures: Signatures, least: int) -> None:
        self.id, self.size, self.signatures, self.least = id, size, signatures, least
        self.session, self.next, self.members = "", "", list[str]()

    def answer(self, step: str, message: Message, reply: Message | None = None) -> Message:
        """Return the answer to a step's request. reply: the phase's reply, for the step with masked numbers."""
        answers = {KEYS: self.keys, SHARES: self.shares, SURVIVORS: self.survivors, UNMASK: self.unmask}
        try:
            if step != KEYS and (message["session"] != self.session or step != self.next):
                raise MethodError(f"{step} is not the next step of this member's sum")
            self.next = ""  # each step is answered once
            if step == MASKED:
                assert reply is not None
                answer = self.masked(message, reply)
            else:
                answer = answers[step](message)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise MethodError(f"{step}: a request that cannot be read ({type(error).__name__})") from None
        self.next = dict(pairwise(STEPS)).get(step, "")
        return answer

    def keys(self, message: Message) -> Message:
        """Begin a sum: return new public keys, signed."""
        self.session, self.members = str(message["session"]), list(map(str, message["members"]))
        if len(set(self.members)) < self.least or self.id not in self.members:
            raise MethodError(f"a sum of {len(set(self.members))} members; at least {self.least} are needed")
        self.cipher_pair, self.mask_pair, self.seed = KeyPair(), KeyPair(), secrets.token_bytes(KEY_BYTES)
        cipher, public = self.cipher_pair.public, self.mask_pair.public
        statement = key_statement(self.session, self.id, cipher, public, self.size)
        signature = self.signatures.sign(self.id, statement)
        return Message(cipher=tensor_of(cipher), mask=tensor_of(public), size=self.size, signature=tensor_of(signature))

    def shares(self, message: Message) -> Message:
        """Return shares of the seed and of the private key for each neighbour, encrypted to it."""
        names, signatures = list(map(str, message["names"])), message["signatures"]
        cipher, mask = bytes_of(message["cipher"]), bytes_of(message["mask"])
        self.list = _KeyList(self.session, names, cipher, mask, message["sizes"])
        if len(names) < self.least or not set(names) <= set(self.members) or self.id not in names:
            raise MethodError(
                f"keys of {len(names)} members that are not those of this sum, or fewer than {self.least}"
            )
        self.index = names.index(self.id)
        own = (self.list.cipher[self.index], self.list.mask[self.index], self.list.sizes[self.index])
        if own != (self.cipher_pair.public, self.mask_pair.public, self.size):
            raise MethodError("other keys than those that this member sent")
        self.near = self.list.near(self.index)
        for index in self.near:
            if not self.signatures.holds(names[index], self.list.statement(index), bytes_of(signatures[str(index)])):
                raise MethodError(f"keys of {names[index]!r} without its signature")
        points, enough = [index + 1 for index in (*self.near, self.index)], threshold(len(self.near))
        seeds = shares_of(self.seed, points, enough)
        keys = shares_of(self.mask_pair.private, points, enough)
        self.held = {self.index: (seeds[self.index + 1], keys[self.index + 1])}
        sent = {
            str(to): tensor_of(
                masks.sealed(self._secret(to), seeds[to + 1] + keys[to + 1], self._about(self.index, to))
            )
            for to in self.near
        }
        return Message(commitment=tensor_of(digest(b"seed", self.seed)), shares=sent)

    def _secret(self, other: int) -> bytes:
        return self.cipher_pair.agreed(self.list.cipher[other], b"shares " + self.session.encode())

    def _about(self, sender: int, receiver: int) -> bytes:
        return digest(self.list.transcript, self.list.names[sender].encode(), self.list.names[receiver].encode())

    def masked(self, message: Message, reply: Message) -> Message:
        """Return a reply with its summed field masked."""
        self._hold(message["shares"])
        mean = Mean(str(message["field"]), str(message["weight"]) or None)
        weight = mean.weigh(reply)
        if not 0 <= weight <= self.size:
            raise MethodError(f"a weight of {weight:g}, and this client has {self.size} samples")
        fields = dict(reply)
        params: Params = fields.pop(mean.field)
        floats = [tensor for tensor in params.values() if tensor.is_floating_point()]
        flat = torch.cat([tensor.detach().double().reshape(-1) for tensor in floats]).numpy()
        words = self.list.fixed.encode(flat, weight) + mask(self.seed, len(flat))
        for other in self.held.keys() - {self.index}:
            words += _signed_mask(self.mask_pair, self.index, other, self.list.mask[other], self.session, len(flat))
        counters = {name: tensor for name, tensor in params.items() if not tensor.is_floating_point()}
        more = {"counters": counters} if counters else {}
        return Message(**fields, **more, masked=torch.from_numpy(words.view(np.int64)))

    def _hold(self, shares: Mapping[str, Tensor]) -> None:
        """Keep the neighbours' shares; raises MethodError if these are too few."""
        for text, data in shares.items():
            sender = int(text)
            if sender not in self.near:
                raise MethodError("shares from one that is no neighbour")
            both = masks.opened(self._secret(sender), bytes_of(data), self._about(sender, self.index))
            self.held[sender] = both[:SHARE_BYTES], both[SHARE_BYTES:]
        if len(self.held) < threshold(len(self.near)):
            raise MethodError(f"shares of {len(self.held)} members, fewer than {threshold(len(self.near))}")

    def survivors(self, message: Message) -> Message:
        """Return a signature of the list of the members whose masked numbers arrived."""
        self.there = [int(index) for index in message["survivors"]]
        possible = set(self.held) | (set(range(len(self.list.names))) - set(self.near))
        near = sum(index in self.held for index in self.there)
        if self.there != sorted(set(self.there) & possible) or self.index not in self.there:
            raise MethodError("a list of survivors with members that sent no shares, or without this one")
        if len(self.there) < self.least or near < threshold(len(self.near)):
            raise MethodError(f"{len(self.there)} survivors, too few for a sum that hides each of them")
        statement = self.list.survivors_statement(self.there)
        return Message(signature=tensor_of(self.signatures.sign(self.id, statement)))

    def unmask(self, message: Message) -> Message:
        """Return shares of the survivors' seeds and the other neighbours' keys, if enough members signed one list."""
        statement, signed = self.list.survivors_statement(self.there), message["signatures"]
        count = 1 + sum(
            self.signatures.holds(self.list.names[index], statement, bytes_of(signed[str(index)]))
            for index in self.near
            if index in self.there and str(index) in signed
        )
        if count < threshold(len(self.near)):
            raise MethodError(f"{count} members signed this list of survivors; {threshold(len(self.near))} are needed")
        seeds = {str(at): tensor_of(seed) for at, (seed, _) in self.held.items() if at in self.there}
        keys = {str(at): tensor_of(key) for at, (_, key) in self.held.items() if at not in self.there}
        return Message(seeds=seeds, keys=keys)


# -- the server -------------------------------------------------------------------------------------------------------


class GroupSum:
    """The server's side of one sum, over the members of one group in one phase.

    requests: those of the current step by member; none after the last step or a failure. failed: why there is no sum.
    replies: the replies of the members in the sum, without the summed field.
    """

    def __init__(self, mean: Mean, phase: str, asked: Mapping[str, Message], least: int) -> None:
        self.mean, self.phase, self.asked = mean, phase, asked
        self.session, self.failed = secrets.token_hex(16), ""
        self.replies: dict[str, Message] = {}
        self.there: list[int] = []  # members whose masked numbers arrived
        self.words: Words | None = None  # the sum of these numbers
        self.requests: dict[str, Message] = {}
        self._flow = self._steps(least)
        self.take(None)

    def take(self, replies: Mapping[str, Message] | None) -> None:
        """Process the replies to the requests, and make those of the next step (None: of the first)."""
        try:
            self.requests = self._flow.send(replies)
        except StopIteration:
            self.requests = {}
        except MethodError as error:
            self.failed, self.replies, self.requests = str(error), {}, {}

    def _steps(self, least: int) -> Generator[dict[str, Message], Any, None]:
        """Yield the requests of each step by member, and receive their replies; raises MethodError without a sum."""
        if len(self.asked) < least:
            raise MethodError(f"a group of {len(self.asked)}, fewer than privacy.min_members = {least}")
        replies = yield dict.fromkeys(self.asked, Message(session=self.session, members=sorted(self.asked)))
        self._check_enough(KEYS, replies, 2)
        names = sorted(replies)
        cipher, mask = (b"".join(bytes_of(replies[id][which]) for id in names) for which in ("cipher", "mask"))
        self.list = _KeyList(self.session, names, cipher, mask, [replies[id]["size"] for id in names])
        signed, enough = [replies[id]["signature"] for id in names], threshold(len(self.list.near(0)))

        replies = yield {name: self._keys_for(index, signed) for index, name in enumerate(names)}
        by_place = self._by_place(replies)
        self.shares = {index: reply["shares"] for index, reply in by_place.items()}
        self.commitments = {index: bytes_of(reply["commitment"]) for index, reply in by_place.items()}
        self._check_enough(SHARES, replies, enough)

        replies = yield {names[index]: self._masked_for(index) for index in self.shares}
        for id in sorted(replies):
            self.add(id, replies[id])
        del replies  # they may be large
        self._check_enough(MASKED, self.there, enough)

        survivors = Message(session=self.session, survivors=self.there)
        replies = yield {names[index]: survivors for index in self.there}
        signatures = {index: reply["signature"] for index, reply in self._by_place(replies).items()}
        self._check_enough(SURVIVORS, replies, enough)

        replies = yield {names[index]: self._signatures_for(index, signatures) for index in signatures}
        self._unmask(self._by_place(replies))
        self._check_enough(UNMASK, replies, enough)

    def _check_enough(self, step: str, answers: Collection[Any], enough: int) -> None:
        if len(answers) < enough:
            raise MethodError(f"{len(answers)} of {len(self.asked)} members answered {step}, fewer than {enough}")

    def _by_place(self, replies: Mapping[str, Message]) -> dict[int, Message]:
        return {self.list.names.index(id): reply for id, reply in sorted(replies.items())}

    def _keys_for(self, index: int, signed: Sequence[Tensor]) -> Message:
        signatures = {str(other): signed[other] for other in self.list.near(index)}
        cipher, mask = tensor_of(b"".join(self.list.cipher)), tensor_of(b"".join(self.list.mask))
        facts = {"session": self.session, "names": self.list.names, "sizes": self.list.sizes}
        return Message(**facts, signatures=signatures, cipher=cipher, mask=mask)

    def _masked_for(self, index: int) -> Message:
        to, name = str(index), self.list.names[index]
        shares = {str(sender): sent[to] for sender, sent in self.shares.items() if to in sent}
        return Message(
            session=self.session, phase=self.phase, message=dict(self.asked[name]), shares=shares,
            field=self.mean.field, weight=self.mean.weight or "",
        )  # fmt: skip

    def add(self, id: str, reply: Message) -> None:
        """Add a member's masked numbers to the sum, and keep the rest of its reply."""
        words = reply["masked"].numpy().view(np.uint64)
        self.words = words.copy() if self.words is None else np.add(self.words, words, out=self.words)
        self.there.append(self.list.names.index(id))
        self.replies[id] = Message(**{name: value for name, value in reply.items() if name != "masked"})

    def _signatures_for(self, index: int, all_signatures: Mapping[int, Tensor]) -> Message:
        near = self.list.near(index)
        signatures = {str(other): data for other, data in all_signatures.items() if other in near}
        return Message(session=self.session, signatures=signatures)

    def _unmask(self, replies: Mapping[int, Message]) -> None:
        """Remove the masks from the sum: the survivors' own masks, and those shared with members that dropped out."""
        assert self.words is not None
        total, count = self.words.copy(), len(self.words)
        for index in self.there:
            total -= mask(self._joined(index, "seeds", replies), count)
        for index in sorted(set(self.shares) - set(self.there)):
            pair = KeyPair(self._joined(index, "keys", replies))
            for other in set(self.list.near(index)) & set(self.there):
                total += _signed_mask(pair, index, other, self.list.mask[other], self.session, count)
        self.total = self.list.fixed.decode(total)

    def _joined(self, index: int, which: str, replies: Mapping[int, Message]) -> bytes:
        """Recover a member's secret from the shares in these replies; some shares may be forged."""
        near = self.list.near(index)
        shares = {
            holder + 1: bytes_of(reply[which][str(index)])
            for holder, reply in replies.items()
            if str(index) in reply[which] and holder in (*near, index)
        }
        enough = threshold(len(near))
        if len(shares) < enough:
            raise MethodError(f"{len(shares)} shares of {self.list.names[index]!r}, fewer than {enough}")
        turned = list(shares.items())
        for _ in turned:
            with suppress(MethodError):
                secret = joined(dict(turned[:enough]))
                if self._is_secret(index, which, secret):
                    return secret
            turned = turned[1:] + turned[:1]
        raise MethodError(f"the shares of a secret of {self.list.names[index]!r} do not fit together")

    def _is_secret(self, index: int, which: str, secret: bytes) -> bool:
        if which == "seeds":
            return digest(b"seed", secret) == self.commitments[index]
        return KeyPair(secret).public == self.list.mask[index]

    def params(self, initial: Params) -> dict[str, Tensor]:
        """Return the mean of the members' parameters, shaped like `initial`; raises MethodError for zero weight."""
        if not self.weight > 0:
            raise MethodError(f"a weighted mean with weights that sum to {self.weight:g}")
        counters = [reply.get("counters", {}) for reply in self.replies.values()]
        return as_params(self.total / self.weight, initial, counters)

    @property
    def weight(self) -> float:
        """The sum of the weights of the members in the sum."""
        return sum(self.mean.weigh(reply) for reply in self.replies.values())


def summed_names(method: Method, phase: str, field: str, net: Net) -> list[str]:
    """Return the names of the tensors in a summed field."""
    form = next(fields[field].bare for fields in method.declared(phase) or () if field in fields)
    assert isinstance(form, Weights)
    return form.names(net)
