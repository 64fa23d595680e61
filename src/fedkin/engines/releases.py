"""The releases of each client under `[privacy]`: what the client sends, and their count, kept with its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

from fedkin import codec
from fedkin.engines.ledger import KEY, Page, SimulatedPage
from fedkin.engines.privacy import (
    BudgetSpent,
    Part,
    Source,
    check_trained,
    clipped_fields,
    no_noise,
    noised_in,
    released,
    signature,
)
from fedkin.engines.setup import Setup
from fedkin.errors import ConfigError, RunError
from fedkin.federation.samples import Samples, hash_of
from fedkin.flow import Fit, Message, Params
from fedkin.forms import Fields, Weights
from fedkin.learning.private import Private


class ReleaseContext(NamedTuple):
    """What a release belongs to: client, round, phase and request; and the client's record, which is updated."""

    id: str
    round: int
    phase: str
    request: Message
    record: dict[str, Any]

    @property
    def name(self) -> str:
        """The prefix of the names of replies to this request; it depends on every bit of the request's tensors."""
        request = blake2b(codec.encode(dict(self.request)), digest_size=16).hexdigest() if self.request else "-"
        return f"{self.round} {self.phase} {request} "


class Releases:
    """Makes private what clients send, and counts the releases. Without `[privacy]` messages pass unchanged.

    A release record holds, if there is any: releases: their number. open: the fields that were sent without
    protection, by phase. known: by field, parameters that everyone knows, from which the next parameters of the field
    are measured: those that the server sent to a phase that does not return them, or those that a peer released last.
    signed: by phase, the released part of the signature, with the request; the same numbers are sent again to the same
    request, and nothing to another request. trained: the private training (`one_more`).
    source: the source of noise; None: no noise. Raises ConfigError if noise is needed and there is no source.
    step(id, name): the number, from 0, of a client's next release under this name in this round. store: the stored
    releases of a deployment's only client; a stored release is sent again for the same round, phase, step and request.
    """

    def __init__(
        self, setup: Setup, step: Callable[[str, str], int], source: Source | None, store: Page | None
    ) -> None:
        self.setup, self.privacy, self.step, self.store = setup, setup.privacy, step, store
        given = setup.privacy
        if (given.noise or given.signature_epsilon or given.sample_epsilon) and source is None:
            raise ConfigError(
                "[privacy]: no source of noise was given; a deployment takes engines.privacy.system_noise, and "
                "keyed(seed) is for simulations only, as it protects nobody"
            )
        self.source = no_noise if source is None else source

    def admit(self, release: ReleaseContext) -> None:
        """Check before any work; raises RunError if a reply cannot be protected, BudgetSpent if it exceeds the budget.

        A reply that was released before is sent again, and costs nothing.
        """
        sets = self.setup.method.declared(release.phase) or ()
        protected = [self._protects(release, fields) for fields in sets]
        if protected and all(protected) and not self._page(release).known(release.name):
            self._within(release, 1)

    def _protects(self, release: ReleaseContext, fields: Fields) -> bool:
        """Whether a reply with these fields has any to clip; raises RunError if it cannot be protected."""
        context = self.setup.context(self.setup.net_of(release.id), release.request)
        wanted = {name: form.wanted(context) for name, form in fields.items()}
        sent = [name for name, sure in wanted.items() if sure is not False]
        clipped = clipped_fields(release.phase, sent, [fields], self.privacy.clip is not None)
        if self.privacy.sample_epsilon is not None:
            # Fields that may or may not be sent are checked when they are.
            sure = [name for name in sent if wanted[name]]
            check_trained(release.phase, [fields], sure, context.private_signatures)
        return bool(clipped)

    def _page(self, release: ReleaseContext) -> Page | SimulatedPage:
        """Return where the releases of this client are counted."""
        return SimulatedPage(release.record) if self.store is None else self.store

    def train(self, release: ReleaseContext, fit: Fit, samples: Samples) -> Private:
        """Return the privacy of a client's fit, and count the fit in the release record.

        Raises BudgetSpent if the client has made all the fits that `privacy.sample_epsilon` allows, and RunError for a
        fit that does not have the experiment's batches and steps on all samples of the client.
        """
        setup, n, page, at = self.setup, len(samples), self._page(release), ""
        training = fit.training or setup.training
        if fit.data is not None or fit.carry or (training.batch_size, training.steps(n)) != (
            setup.training.batch_size, setup.training.steps(n)
        ):  # fmt: skip
            raise RunError(
                f"phase {release.phase!r} of method {setup.method.name!r} trains on chosen samples, or keeps some of "
                "them, or has batches and steps of its own; privacy.sample_epsilon allows the fits of [training] on "
                "all samples of a client: choose another method"
            )
        private = self.privacy.training(n, setup.training, setup.method.fits)
        if self.store is not None:
            # Everything on which the result depends: with other requests or samples the draws must differ.
            what = {"params": dict(fit.params), "extras": dict(fit.extras), "more": repr((fit.loss, training))}
            digest = blake2b(codec.encode(what) + hash_of(samples), digest_size=16).hexdigest()
            at = f"{release.name}fit{self.step(release.id, f'{release.phase} private')} {digest}"
            private = replace(private, secret=self.store.secret(at))
            if self.store.counts(at):
                return private
        most = max(1, setup.training.rounds * setup.method.fits)
        if page.trained is not None and page.trained["fits"] >= most:
            raise BudgetSpent(
                f"it has trained {page.trained['fits']} times, which is all that privacy.sample_epsilon allows"
            )
        page.train(at, private)
        return private

    def reply(self, release: ReleaseContext, reply: Message) -> Message:
        """Return a client's reply as it leaves the client, and count it in the release record.

        Raises BudgetSpent if the reply would cost more than the budget allows.
        """
        sent = self._signed(release, self._released(release, reply, self._parts(release, reply)))
        declared = {name for fields in self.setup.method.declared(release.phase) or () for name in fields}
        sent_models = self._models_in(release)
        self._add_known(release, {name: params for name, params in sent_models.items() if name not in declared})
        return sent

    def shared(self, release: ReleaseContext, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Return a peer's messages by receiver as they leave the peer, and count them in the release record.

        Fields that several messages share are one release, with the same noise.
        """
        fields: dict[tuple[Any, ...], dict[str, Any]] = {}
        sent: dict[str, Message] = {}
        known: dict[str, Any] = {}
        for receiver, message in messages.items():
            parts = self._parts(release, message)
            at = tuple((part.name, _identity(part.value)) for part in parts)
            if at not in fields:
                new = self._released(release, message, parts)
                fields[at] = {part.name: new[part.name] for part in parts}
                known |= {part.name: new[part.name] for part in parts if isinstance(part.form, Weights)}
            sent[receiver] = Message(**{**message, **fields[at]})
        self._add_known(release, known)
        return sent

    def _add_known(self, release: ReleaseContext, known: Mapping[str, Any]) -> None:
        if known:
            release.record["known"] = {**release.record.get("known", {}), **known}

    def _parts(self, release: ReleaseContext, message: Message) -> list[Part]:
        """Return the protected parts of a message; parameters have the base from which they are measured."""
        phase, known = release.phase, release.record.get("known", {})
        parts, received = [], self._models_in(release)
        declared = self.setup.method.declared(phase)
        if self.privacy.sample_epsilon is not None:
            check_trained(phase, declared, list(message), self.privacy.signature_epsilon is not None)
        clipped = clipped_fields(phase, message, declared, self.privacy.clip is not None) if message else {}
        for name, form in clipped.items():
            base: Params | None = None
            if isinstance(form, Weights):
                if name not in received and len(received) > 1:
                    raise RunError(
                        f"phase {phase!r}: a client was sent several models and chose one by its samples; [privacy] "
                        f"cannot protect a choice, and {name!r} can be compared with none: choose another method"
                    )
                from_server = received.get(name, next(iter(received.values()), {}))
                base = {**self.setup.net_of(release.id).initial, **known.get(name, {}), **from_server}
            parts.append(Part(name, form, message[name], base))
        return parts

    def _models_in(self, release: ReleaseContext) -> dict[str, Params]:
        """Return the fields of the request that are parameters of the client's net, or of a part of it."""
        initial = self.setup.net_of(release.id).initial
        return {
            field: value for field, value in release.request.items()
            if isinstance(value, Mapping) and value and all(
                name in initial and getattr(item, "shape", None) == initial[name].shape for name, item in value.items()
            )
        }  # fmt: skip

    def _released(self, release: ReleaseContext, message: Message, parts: list[Part]) -> Message:
        id, round, phase, _, record = release
        count = len(parts) if isinstance(self.privacy.clip, Mapping) else min(1, len(parts))
        step, page = self.step(id, f"{phase} release"), self._page(release)
        at = f"{release.name}{step}"
        again = page.find(at) if count else None
        if again is not None and set(again) == {part.name for part in parts}:
            sent = Message(**{**message, **again})
        else:
            self._within(release, count)
            sent = released(message, parts, self.privacy, self.source(id, round, f"{phase} {step}"))
            if count:
                page.keep(at, round, count, {part.name: sent[part.name] for part in parts})
        record["releases"] = page.count
        self._record_unprotected(release, message, parts)
        return sent

    def _record_unprotected(self, release: ReleaseContext, message: Message, parts: list[Part]) -> None:
        """Record the fields of a message that leave the client without protection."""
        phase, record = release.phase, release.record
        protected = {part.name for part in parts} | self._noised(phase).keys()
        if self.privacy.sample_epsilon is not None:  # privately trained parameters have their noise already
            for fields in self.setup.method.declared(phase) or ():
                protected |= {name for name, form in fields.items() if form.is_parameters}
        before = record.get("open", {})
        open = sorted({*before.get(phase, []), *message} - protected)
        record["open"] = {**before, phase: open} if open else {**before}

    def _noised(self, phase: str) -> dict[str, float]:
        """Return the share in the signature of each of its fields in this phase."""
        sets = self.setup.method.declared(phase) or ()
        return {name: share for fields in sets for name, share in noised_in(fields).items()}

    def _signed(self, release: ReleaseContext, message: Message) -> Message:
        """Return the message with noise on its part of a signature: once in a run, then the same numbers again."""
        id, _, phase, _, _ = release
        noised = {name: share for name, share in self._noised(phase).items() if name in message}
        if not noised:
            return message
        at, share, page = release._replace(round=0).name, sum(noised.values()), self._page(release)
        if (again := page.find(at)) is not None:
            return Message(**again)
        if page.counts(f"0 {phase} "):
            raise BudgetSpent("it has signed in this run, and answers no other request for a signature")
        self._within(release, 0, share)
        normal = self.source(id, 0, f"{phase} signature")
        signed = dict(message)
        for name, part in noised.items():
            signed[name] = signature(message[name], part, self.privacy, normal)
        page.keep(at, 0, 1, signed, share)
        return Message(**signed)

    def _within(self, release: ReleaseContext, count: int, share: float = 0.0) -> None:
        """Raise BudgetSpent if these releases, or this share of a signature, would cost more than is allowed."""
        if not count and not share:
            return
        budget, page, epsilon = self.privacy.budget, self._page(release), self.privacy.epsilon
        if budget is not None and epsilon(page.count + count, page.signed + share) > budget:
            spent = f"epsilon after {page.count} releases is {epsilon(page.count, page.signed):.3g}"
            raise BudgetSpent(f"{spent}, and one more would exceed the {budget:g} of privacy.budget")
        page.check(count, share)


def _identity(value: Any) -> Any:
    """Return a key that is equal only for the same tensors."""
    if isinstance(value, Mapping):
        return tuple((name, _identity(item)) for name, item in value.items())
    return id(value)


def counted(states: Mapping[str, Mapping[str, Any]], ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return {client id: {"releases", "signed", "open"}} from the clients' states; 0 for clients that sent nothing.

    signed: the share of a signature. "trained": counts of `one_more`, for clients that have trained privately.
    """
    counts = {}
    for id in ids:
        record = states[id].get(KEY, {}) if id in states else {}
        page = SimulatedPage(record)
        counts[id] = {"releases": page.count, "signed": page.signed, "open": record.get("open", {})}
        if page.trained is not None:
            counts[id]["trained"] = page.trained
    return counts
