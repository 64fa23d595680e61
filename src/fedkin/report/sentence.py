"""The one sentence at the top of a report, built from the runs' numbers only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedkin.analysis.intervals import over
from fedkin.analysis.paired import VERDICTS
from fedkin.report.fairness import Gains
from fedkin.report.units import megabytes
from fedkin.report.verdicts import Told, in_words
from fedkin.tasks import METRICS, Metric

__all__ = ["FEDAVG", "LOCAL", "Facts", "Found", "sentence"]

LOCAL, FEDAVG = "local", "fedavg"
_NOT_LIKE_THIS = " with every seed on the same clients and with the same settings"


@dataclass(frozen=True)
class Found:
    """Groups of a run's last graph. planted: the number of planted groups among clients present; ari: 1 if equal.

    told: what tests found, if the groups rest on tests.
    """

    groups: int
    present: int
    planted: int | None = None
    ari: float | None = None
    told: Told | None = None

    @property
    def equal(self) -> bool:
        """Whether the groups are the planted ones."""
        return self.ari is not None and self.ari > 1 - 1e-9


@dataclass(frozen=True)
class Facts:
    """The facts of the sentence: one method (`subject`); a tuple has a value per seed.

    gains: empty if a run has no Local to compare with; local: whether Local was run at all; found: empty
    if the method records no groups; sent: bytes per run; sent_fedavg: the same of FedAvg over the same number of
    rounds, None if FedAvg was not run; rival: the best other method and its mean; unseen: the number of clients that
    never took part, and their mean; candidates: the number of methods of which the subject has the best mean,
    and chosen_on: where it has; given: what was told to the subject, such as the number of groups.
    """

    subject: str
    kind: str
    clients: int
    seeds: int
    mean: float | None
    gains: tuple[Gains, ...] = ()
    found: tuple[Found, ...] = ()
    sent: float = 0.0
    sent_fedavg: float | None = None
    rival: tuple[str, float] | None = None
    metric: Metric = METRICS["accuracy"]
    unseen: tuple[int, float] | None = None
    local: bool = False
    candidates: int = 1
    chosen_on: str = "the test samples"
    given: tuple[str, ...] = ()

    def write(self, value: float) -> str:
        """A value of the metric as text."""
        return _percent(value) if self.metric.share else f"{value:.3g}"


def sentence(about: Facts) -> str:
    """Which clients gain, which groups were found, the traffic, and whether another method is more accurate.

    >>> sentence(Facts("Local", "local", clients=40, seeds=1, mean=0.9))
    '40 clients, each training alone, reach 90.0 % mean test accuracy; nothing sent.'
    """
    parts = [_who_gains(about), _unseen(about), _with_given(about), _sent(about), _rival(about)]
    return "; ".join(part for part in parts if part) + "."


def _who_gains(about: Facts) -> str:
    over = f" (mean over {about.seeds} seeds)" if about.seeds > 1 else ""
    clients, title = _many(about.clients, "client"), about.metric.title
    if about.mean is None:
        return f"{about.subject} ran with {clients}, none of which has test data, so {title} is not known"
    if about.kind == LOCAL:
        who = (
            f"{clients}, each training alone, reach" if about.clients > 1 else "The one client, training alone, reaches"
        )
        return f"{who} {about.write(about.mean)} mean test {title}{over}"
    if not about.gains:
        reach = "reaches" if about.clients == 1 else "reach"
        return (
            f"With {about.subject}{_chosen(about)}, "
            f"{clients} {reach} {about.write(about.mean)} mean test {title}{over}; "
            "who gains from collaborating is not known, as Local was not run" + (_NOT_LIKE_THIS if about.local else "")
        )
    same = len({tuple(gains.counts.values()) or (gains.gaining, gains.hurt) for gains in about.gains}) == 1
    over = f", with each of {about.seeds} seeds" if over and same else over
    return f"With {about.subject}{_chosen(about)}, {_gaining(about)}{over}"


def _chosen(about: Facts) -> str:
    return f", chosen of {about.candidates} methods on {about.chosen_on}" if about.candidates > 1 else ""


def _gaining(about: Facts) -> str:
    if all(gains.sure for gains in about.gains):
        return _surely(about)
    gain = statistics.fmean(gains.gaining for gains in about.gains)
    hurt = statistics.fmean(gains.hurt for gains in about.gains)
    known = statistics.fmean(len(gains.by_client) for gains in about.gains)
    what = "using one common model" if about.kind == FEDAVG else "collaborating"
    everyone = f"{_count(known)} clients" + (" that have test data" if known < about.clients else "")
    if known == 1:
        word = "gains" if gain else "loses" if hurt else "neither gains nor loses"
        return f"the one client {word} from {what}".replace("loses from", "loses by")
    if gain == known:
        return f"all {everyone} gain from {what}"
    if hurt == known:
        return f"all {everyone} lose by {what}"
    if gain == hurt == 0:
        return f"none of {everyone} gains or loses by {what}"
    gaining, losing = ("gains" if gain == 1 else "gain"), ("loses" if hurt == 1 else "lose")
    if hurt > gain:
        counts = f"{_count(hurt)} of {everyone} {losing}, {_count(gain)} {gaining}"
        return f"{what} hurts more clients than it helps: {counts}"
    lost = f", {_count(hurt)} {losing}" if hurt else ""
    return f"{_count(gain)} of {everyone} {gaining} from {what}{lost}"


def _surely(about: Facts) -> str:
    """Counts of verdicts, and the mean gain with its interval."""
    each = [gains.counts for gains in about.gains]
    gain, hurt, apart, few = (statistics.fmean(counts[word] for counts in each) for word in VERDICTS)
    known = gain + hurt + apart + few
    what = "using one common model" if about.kind == FEDAVG else "collaborating"
    everyone = f"{_count(known)} client{'' if known == 1 else 's'}" + (
        " with test data" if known < about.clients else ""
    )
    need = "events" if any(one.events is not None for one, _ in about.gains[0].sure.values()) else "test samples"
    gaining = f"{_count(gain) if gain else 'none'} of {everyone} surely {'gain' if gain > 1 else 'gains'}"
    parts = [
        f"{gaining} from {what}" if gain >= hurt else f"{what} hurts more clients than it helps: {gaining}",
        f"{_count(hurt) if hurt else 'none'} {'are' if hurt > 1 else 'is'} surely hurt",
    ]
    if apart:
        parts.append(f"{_count(apart)} cannot be told apart from training alone")
    if few:
        parts.append(f"{_count(few)} {'has' if few == 1 else 'have'} too few {need} for a verdict")
    return ", ".join(parts) + _mean_gain(about)


def _mean_gain(about: Facts) -> str:
    """The mean gain, with its interval over seeds, or over clients with one seed."""
    several = len(about.gains) > 1
    values = [gains.mean for gains in about.gains] if several else list(about.gains[0].by_client.values())
    bounds = over(values)
    scale, unit = (100, " points") if about.metric.share else (1, "")
    mean = f" (mean gain {scale * statistics.fmean(values):+.3g}{unit}"
    if bounds is None:
        return mean + ")"
    ends = " to ".join(f"{scale * end:+.3g}" for end in bounds)
    return f"{mean}, 95 % interval over {'seeds' if several else 'clients'} {ends})"


def _with_given(about: Facts) -> str:
    """The groups, and what was told to the method."""
    found, told = _groups(about), ", ".join(about.given)
    return f"{found} ({told})" if found and told else found or (f"told: {told}" if told else "")


def _groups(about: Facts) -> str:
    if not about.found:
        return ""
    if len(about.found) > 1:
        return _groups_over_seeds(about.found)
    only = about.found[0]
    among = f" among the {only.present:,} clients of the last round" if 1 < only.present < about.clients else ""
    if only.told is not None:
        return in_words([only.told], among + _against(only))
    if only.groups == only.present > 1:
        text = "no groups found, every client is alone"
    elif only.groups == 1 and only.present > 1:
        text = "1 group found that holds everyone"
    else:
        text = f"{_many(only.groups, 'group')} found"
    return text + among + _against(only)


def _against(only: Found) -> str:
    if only.ari is None or only.planted is None:
        return ""
    if only.equal:
        return ", equal to the planted ones" if only.groups > 1 else ", equal to the planted one"
    if only.groups == only.planted:
        return f", as many as planted but not the same ones (ARI {_below_one(only.ari)})"
    return f" where {only.planted} {'was' if only.planted == 1 else 'were'} planted (ARI {_below_one(only.ari)})"


def _groups_over_seeds(found: Sequence[Found]) -> str:
    told = [one.told for one in found if one.told is not None]
    if len(told) == len(found):
        return in_words(told, _against_over_seeds(found))
    low, high = min(one.groups for one in found), max(one.groups for one in found)
    text = f"{_many(low, 'group')} found each time"
    if low != high:
        text = f"{low} {'or' if high == low + 1 else 'to'} {high} groups found"
    return text + _against_over_seeds(found)


def _against_over_seeds(found: Sequence[Found]) -> str:
    known = [one.ari for one in found if one.ari is not None]
    if len(known) < len(found):
        return ""
    equal = sum(one.equal for one in found)
    if equal == len(found):
        return ", equal to the planted ones"
    seeds = f"{equal or 'none'} of {len(found)} seeds"
    return f", equal to the planted ones with {seeds} (mean ARI {_below_one(statistics.fmean(known))})"


def _sent(about: Facts) -> str:
    if not about.sent:
        return "nothing sent"
    text = f"{megabytes(about.sent)} sent"
    if about.seeds > 1:
        text += " a run"
    if about.kind == FEDAVG or not about.sent_fedavg:
        return text
    less = about.sent_fedavg / about.sent
    if 0.98 <= less <= 1 / 0.98:
        return f"{text}, as much as FedAvg"
    return (
        f"{text}, {_times(less)} times less than FedAvg" if less > 1 else f"{text}, {_times(1 / less)} times FedAvg's"
    )


def _unseen(about: Facts) -> str:
    if about.unseen is None or about.mean is None:
        return ""
    count, mean = about.unseen
    has = "has" if count == 1 else "have"
    return (
        f"{_many(count, 'unseen client')} {has} {about.write(mean)} mean {about.metric.title}, "
        f"those that take part {about.write(about.mean)}"
    )


def _rival(about: Facts) -> str:
    if about.mean is None or about.rival is None:
        return ""
    name, mean = about.rival
    if about.metric.better(round(mean, 3), round(about.mean, 3)) <= 0:
        return ""
    figures = f"({about.write(mean)} against {about.write(about.mean)})"
    if about.metric.name == "accuracy":
        return f"{name} is more accurate on average {figures}"
    return f"{name} has the better mean {about.metric.title} {figures}"


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _below_one(ari: float) -> str:
    """Two digits, never rounded up to 1, which would mean equal."""
    return f"{min(ari, 0.99):.2f}"
