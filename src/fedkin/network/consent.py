"""What a participant will send, in words and in bytes, as the method declares it: shown before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fedkin.data.own import CLASS, OwnTable
from fedkin.engines.ledger import Ledger, Page
from fedkin.engines.privacy import Privacy, noised_in
from fedkin.engines.setup import Setup
from fedkin.errors import DataError
from fedkin.federation import Client
from fedkin.federation.summaries import agree
from fedkin.flow import PeerMethod
from fedkin.forms import (
    Bytes,
    Context,
    Dim,
    Each,
    Fields,
    Flag,
    Form,
    Integer,
    Integers,
    Number,
    Shaped,
    Sometimes,
    Upto,
    Weights,
    length_of,
)
from fedkin.learning.metrics import file_of
from fedkin.network.agreement import SetupOf, setup_and_agreement
from fedkin.network.link import Left
from fedkin.untrusted import escaped

_ROOM = 1 << 16  # bytes of names in a message


def lines_about(client: Client, peer: bool = False) -> list[str]:
    """Return lines that say what a participant tells about itself before the first round.

    peer: whether there is no server; a participant tells its numbers of samples only to a server.
    """
    columns = list(map(str, client.about.get("columns", ())))
    classes = [name.removeprefix(CLASS).strip() for name in columns if name.startswith(CLASS)]
    inputs = [name for name in columns if not name.startswith(CLASS)]
    facts = ["its name", "the shape of its inputs", "the number of its classes or targets"]
    if not peer:
        facts += ["its numbers of training and test samples", "a hash of its samples"]
        facts += [f"its group {escaped(client.group)!r}"] if client.group is not None else []
    lines = [f"about this {'peer' if peer else 'client'}: {', '.join(facts)}"]
    for what, names in (("columns", inputs), ("classes", classes)):
        lines += [f"names of its {what}: {', '.join(map(escaped, names))}"] if names else []
    return lines


def consent_to_profile(
    table: OwnTable, settings: str, setup_of: SetupOf, ledger: Ledger, consent: Callable[[list[str]], bool],
    later: Iterable[str] = (),
) -> bool:  # fmt: skip
    """Ask for consent to send a table's profile; returns whether all messages were shown too. Raises Left.

    later: further lines to show.
    """
    lines, complete = _disclosure_with_table(table, settings, setup_of, ledger)
    if not consent([*lines, *later]):
        raise Left
    ledger.sent_unprotected.append("profile")
    return complete


def _disclosure_with_table(
    table: OwnTable, settings: str, setup_of: SetupOf, ledger: Ledger
) -> tuple[list[str], bool]:  # fmt: skip
    """Return lines that say all that a participant with a table will send, and whether the lines are complete.

    The sizes of messages are for the participant's own columns and categories alone. If the table cannot be encoded
    alone (it lacks a class), there are no lines about messages.
    """
    lines = [f"of the table, once, for a common encoding: {line}" for line in table.summary.words()]
    try:
        client, task = table.client(agree({table.name: table.summary}, table.reading))
    except DataError:
        return lines, False
    setup, _ = setup_and_agreement(settings, task, setup_of)
    if setup is None:
        return lines, False
    return lines + disclosure(setup, client, ledger.page("", setup.privacy)), True


def disclosure(setup: Setup, client: Client, page: Page | None = None) -> list[str]:
    """Return lines that say what a participant sends: each message of the method, and what it tells about itself.

    page: the participant's page of the ledger, under `[privacy]`.
    """
    context, private, peer = setup.context(setup.net_of(client.id)), setup.privacy, isinstance(setup.method, PeerMethod)
    lines = []
    for name in sorted(setup.method.phases()):
        sets = setup.method.declared(name)
        if sets is None:
            lines.append(f"{name}: not declared by the method, so anything that it puts into the message")
            continue
        described = [_describe_fields(fields, context, private, setup.sums_securely) for fields in sets]
        size = max(size for _, size in described)
        large = f", about {size:,} bytes each time" if size else ""
        lines.append(f"{name}: {' or '.join(dict.fromkeys(words for words, _ in described))}{large}")
    if private.on:
        lines += _describe_noise(setup, client, page)
    if setup.sums_securely:
        least = setup.privacy.min_members
        lines.append(
            f"secure sums: the server learns the sum over a group of at least {least} members, and of this one public "
            "keys, encrypted shares, signatures, and its number of samples; in a smaller group nothing is sent"
        )
    lines += lines_about(client, peer)
    return lines if peer else lines + _describe_evaluation(setup)


def _describe_evaluation(setup: Setup) -> list[str]:
    exact = ", without noise" if setup.privacy.on else ""
    what = "the loss and the task's figures over its test samples, their number, and a hash of its model"
    lines = [f"evaluation: {what}{exact}"]
    if setup.measures:
        further = ", ".join(f"{each.name} ({file_of(each) or 'fedkin'})" for each in setup.measures)
        lines.append(f"metrics: a number of each over its test samples{exact}: {further}")
    return lines


def releases_in(setup: Setup, client: Client) -> int:
    """Return the number of releases in a round with one message of each kind, without the signature.

    All noised fields of a message are one release, or one release each if `clip` has a norm for each field.
    """
    context, total = setup.context(setup.net_of(client.id)), 0
    if setup.privacy.clip is None:
        return 0
    for name in sorted(setup.method.phases()):
        most = 0
        for fields in setup.method.declared(name) or ():
            once = noised_in(fields)
            noised = sum(
                _wanted(form, context) is not False and form.is_float and name not in once
                for name, form in fields.items()
            )
            most = max(most, noised if isinstance(setup.privacy.clip, Mapping) else min(1, noised))
        total += most
    return total


def largest_message(setup: Setup, id: str) -> int:
    """Return the most bytes that a message of this participant may have, with room for its head and for rounding.

    This is twice the size of the declared form; `run.message_limit_mb` if a form leaves the size open, and never more.
    """
    context, largest = setup.context(setup.net_of(id)), 0
    for name in sorted(setup.method.phases()):
        sets = setup.method.declared(name)
        if sets is None:
            return context.most_bytes
        for fields in sets:
            total = 0
            for form in fields.values():
                bound = _describe(form, context).bound
                if bound is None:
                    return context.most_bytes
                total += bound
            largest = max(largest, total)
    # Masked numbers have 8 bytes each.
    return min(context.most_bytes, (4 if setup.sums_securely else 2) * largest + _ROOM)


def _describe_noise(setup: Setup, client: Client, page: Page | None) -> list[str]:
    """Return lines on the noise in messages and in training, and on its epsilon."""
    private, rounds, releases = setup.privacy, setup.training.rounds, releases_in(setup, client)
    lines = []
    if private.clip is not None:
        clip = private.clip if isinstance(private.clip, Mapping) else {"all together": private.clip}
        bounds = ", ".join(f"{name} {bound:g}" for name, bound in clip.items())
        spread = f"normal noise of {2 * (private.noise or 0):g} times that, drawn from this machine's own randomness"
        lines.append(f"noise: fields 'with noise' are clipped to the norm ({bounds}), and get {spread}")
    signed = 0.0
    if private.signature_epsilon is not None:
        signed = 1.0
        lines.append(
            "signature: fields 'with noise, once' leave once in this run, with normal noise from this machine's own "
            f"randomness: epsilon {private.signature_epsilon:g} at delta {private.delta:g} for one sample"
        )
    trained = None
    if private.sample_epsilon is not None and client.size:
        how = private.training(client.size, setup.training, setup.method.fits)
        trained = {"rate": how.rate, "noise": how.noise, "steps": rounds * setup.method.fits * how.steps}
        lines.append(
            f"training: a step draws each sample with the probability {how.rate:.3g}, clips its gradient to the norm "
            f"{how.clip:g}, and adds normal noise of {how.noise:.3g} times that, from a secret of this machine's own: "
            f"epsilon {private.sample_epsilon:g} at delta {private.delta:g} for one sample; no more fits after that"
        )
    most = private.epsilon(releases * rounds, signed, trained)
    after = f"after {rounds} rounds with one message of each kind; no more"
    lines.append(f"epsilon: {most:.3g} at delta {private.delta:g} {after}")
    return lines + _describe_limits(private, page)


def _describe_limits(private: Privacy, page: Page | None) -> list[str]:
    """Return lines on the epsilon so far, and on its limits."""
    lines = []
    if page is not None and page.ledger.lines:
        lines.append(f"epsilon so far: {page.ledger.epsilon(private.delta):.3g}, with all runs on this machine")
    limits = {"the experiment": private.budget, "this participant, over all runs": page and page.ledger.limit}
    lines += [f"nothing more is sent above epsilon {limit:g} (set by {who})" for who, limit in limits.items() if limit]
    return lines


# -- fields ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Described:
    """A field in words. size: its bytes, as far as they are known. bound: the most bytes; None: no limit."""

    words: str
    size: int = 0
    bound: int | None = None


def _describe_fields(fields: Fields, context: Context, private: Privacy, summed: bool) -> tuple[str, int]:
    """Return one set of fields in words, and its size in bytes as far as it is known."""
    words, size, once = [], 0, noised_in(fields)
    for name, form in fields.items():
        if _wanted(form, context) is False:
            continue
        field = _describe(form, context)
        how = "; with noise, once" if name in once else _protection(form, private)
        masked = "; masked, for a sum over a group" if summed and form.is_parameters else ""
        words.append(f"{name} ({field.words}{how}{masked})")
        size += field.size
    return ", ".join(words) or "an empty message", size


def _protection(form: Form, private: Privacy) -> str:
    """Return how noise protects a field of this form."""
    if private.sample_epsilon is not None and form.is_parameters:
        return "; from private training"
    if private.clip is not None and form.is_float:
        return "; with noise"
    return "; as it is" if private.on else ""


def _wanted(form: Form, context: Context) -> bool | None:
    """Return whether the field is sent; None if that is open, such as when it depends on the server's request."""
    try:
        return form.wanted(context)
    except KeyError:  # `context.asked` is empty: nothing was asked yet
        return None


def _describe(form: Form, context: Context) -> _Described:
    match form:
        case Sometimes():
            field = _describe(form.form, context)
            return replace(field, words=f"perhaps: {field.words}") if _wanted(form, context) is None else field
        case Weights():
            tensors = {name: context.net.initial[name] for name in form.names(context.net)}
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            shapes = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()]
            more = f" and {len(shapes) - 6} more tensors" if len(shapes) > 6 else ""
            return _Described(f"of the net: {', '.join(shapes[:6])}{more}", size, size)
        case Shaped():
            lengths = [_length(dim, context) for dim in form.dims]
            width = (form.dtype or context.net.dtype).itemsize
            bounds = [most for _, most in lengths if most is not None]
            bound = math.prod(bounds) * width if len(bounds) == len(lengths) else None
            size = math.prod(words for words, _ in lengths if isinstance(words, int)) * width
            return _Described(f"numbers [{', '.join(str(words) for words, _ in lengths)}]", size, bound)
        case Integers():
            words, most = _length(form.dim, context)
            size = 8 * words if isinstance(words, int) else 0
            return _Described(f"whole numbers [{words}]", size, None if most is None else 16 * most)
        case Each():
            field = _describe(form.form, context)
            return _Described(f"any number of: {field.words}", field.size)
        case Bytes():
            about = "" if form.usual is None else f"about {form.usual:,} bytes, "
            return _Described(f"{about}at most {form.most:,} bytes", form.usual or form.most, form.most)
    return _ONE_VALUE.get(type(form), _Described(type(form).__name__))


_ONE_VALUE = {
    Integer: _Described("a whole number", 8, 32), Number: _Described("a number", 8, 32),
    Flag: _Described("true or false", 1, 32),
}  # fmt: skip


def _length(dim: Dim, context: Context) -> tuple[int | str, int | None]:
    """Return a length, or words if it is not fixed; and the largest possible length, None if that is open."""
    if isinstance(dim, Upto):
        words, most = _length(dim.most, context)
        return f"up to {words}", most
    if isinstance(dim, str) and dim not in ("classes", "width", "size"):
        return dim, None
    try:
        length = length_of(dim, context)
    except KeyError:  # nothing was asked yet
        return "as asked", None
    return length, length
