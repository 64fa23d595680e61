"""The sentence says what the numbers say, whatever they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedkin.analysis.paired import VERDICTS, Difference
from fedkin.report.fairness import Gains
from fedkin.report.sentence import Facts, Found, sentence


def gains(up: int, down: int = 0, equal: int = 0) -> Gains:
    values = [0.1] * up + [-0.1] * down + [0.0] * equal
    return Gains({f"c{i}": value for i, value in enumerate(values)})


BASE = Facts(
    "SFMTL-Graph", "sfmtl-graph", clients=40, seeds=1, mean=0.9, gains=(gains(38, 2),),
    found=(Found(4, 40, 4, 1.0),), sent=79e6, sent_fedavg=79e6 * 480,
)  # fmt: skip


def test_everything_known() -> None:
    assert sentence(BASE) == (
        "With SFMTL-Graph, 38 of 40 clients gain from collaborating, 2 lose; "
        "4 groups found, equal to the planted ones; 79.0 MB sent, 480 times less than FedAvg."
    )


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (gains(40), "all 40 clients gain from collaborating;"),
        (gains(1, 0, 39), "1 of 40 clients gains from collaborating;"),
        (gains(39, 1), "39 of 40 clients gain from collaborating, 1 loses;"),
        (gains(12, 25, 3), "collaborating hurts more clients than it helps: 25 of 40 clients lose, 12 gain;"),
        (gains(0, 40), "all 40 clients lose by collaborating;"),
        (gains(0, 0, 40), "none of 40 clients gains or loses by collaborating;"),
        (gains(30, 2), "30 of 32 clients that have test data gain from collaborating, 2 lose;"),
    ],
)
def test_who_gains(gain: Gains, expected: str) -> None:
    assert sentence(replace(BASE, gains=(gain,))).startswith(f"With SFMTL-Graph, {expected}")


@pytest.mark.parametrize(
    ("gain", "expected"),
    [(gains(1), "gains from"), (gains(0, 1), "loses by"), (gains(0, 0, 1), "neither gains nor loses by")],
)
def test_one_client(gain: Gains, expected: str) -> None:
    assert f"the one client {expected} collaborating" in sentence(replace(BASE, clients=1, gains=(gain,)))


def test_without_local_nobody_is_said_to_gain() -> None:
    text = sentence(replace(BASE, gains=()))
    assert "40 clients reach 90.0 % mean test accuracy" in text
    assert "who gains from collaborating is not known, as Local was not run;" in text


def test_a_local_that_is_not_like_this_run_is_not_denied() -> None:
    text = sentence(replace(BASE, gains=(), local=True))
    assert "as Local was not run with every seed on the same clients and with the same settings;" in text


def test_without_test_data_no_accuracy_is_claimed() -> None:
    text = sentence(replace(BASE, mean=None, gains=()))
    assert text.startswith("SFMTL-Graph ran with 40 clients, none of which has test data, so accuracy is not known;")


def surely(gained: int, hurt: int, apart: int, few: int, events: int | None = None) -> Gains:
    counts = zip(VERDICTS, (gained, hurt, apart, few), strict=True)
    words = [word for word, count in counts for _ in range(count)]
    sure = {f"c{i}": (Difference(0.1, 0.0, 0.2, 50, events), word) for i, word in enumerate(words)}
    return Gains({id: 0.1 + 0.01 * (i % 2) for i, id in enumerate(sure)}, sure)


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (surely(31, 0, 9, 0), "31 of 40 clients surely gain from collaborating, none is surely hurt, 9 cannot be told"),
        (surely(1, 1, 38, 0), "1 of 40 clients surely gains from collaborating, 1 is surely hurt, 38 cannot"),
        (surely(2, 8, 30, 0), "collaborating hurts more clients than it helps: 2 of 40 clients surely gain, 8 are"),
        (
            surely(0, 0, 0, 40, 3),
            "none of 40 clients surely gains from collaborating, none is surely hurt, 40 have too",
        ),
        (surely(40, 0, 0, 0), "40 of 40 clients surely gain from collaborating, none is surely hurt (mean gain +10.5"),
        (
            surely(20, 0, 9, 1, 12),
            "9 cannot be told apart from training alone, 1 has too few events for a verdict (mean",
        ),
        (surely(20, 0, 9, 1), "20 of 30 clients with test data surely gain"),
    ],
)
def test_who_surely_gains(gain: Gains, expected: str) -> None:
    assert expected in sentence(replace(BASE, gains=(gain,)))


def test_the_mean_gain_has_an_interval_over_clients_or_seeds() -> None:
    text = sentence(replace(BASE, gains=(surely(40, 0, 0, 0),)))
    assert "(mean gain +10.5 points, 95 % interval over clients +10.3 to +10.7)" in text
    seeds = (surely(40, 0, 0, 0), surely(40, 0, 0, 0), surely(39, 0, 1, 0))
    three = sentence(replace(BASE, seeds=3, gains=seeds))
    assert "39.7 of 40 clients surely gain from collaborating, none is surely hurt, 0.3 cannot be told apart" in three
    assert "95 % interval over seeds +10.5 to +10.5)" in three
    one = sentence(replace(BASE, clients=1, gains=(surely(1, 0, 0, 0),)))
    assert "1 of 1 client surely gains from collaborating, none is surely hurt (mean gain +10 points);" in one


def test_a_choice_on_test_samples_and_what_was_told_are_said() -> None:
    text = sentence(replace(BASE, candidates=5, given=("4 groups, given",)))
    assert text.startswith("With SFMTL-Graph, chosen of 5 methods on the test samples, 38 of 40 clients gain")
    assert "4 groups found, equal to the planted ones (4 groups, given);" in text
    assert "told: planted network, given;" in sentence(replace(BASE, found=(), given=("planted network, given",)))


def test_local_and_fedavg_alone() -> None:
    local = Facts("Local", "local", clients=1, seeds=1, mean=0.5)
    assert sentence(local) == "The one client, training alone, reaches 50.0 % mean test accuracy; nothing sent."
    fedavg = Facts("FedAvg", "fedavg", clients=40, seeds=1, mean=0.5, gains=(gains(30, 10),), sent=2e6, sent_fedavg=2e6)
    assert sentence(fedavg) == ("With FedAvg, 30 of 40 clients gain from using one common model, 10 lose; 2.0 MB sent.")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Found(5, 40, 4, 0.8123), "5 groups found where 4 were planted (ARI 0.81)"),
        (Found(1, 40, 4, 0.0), "1 group found that holds everyone where 4 were planted (ARI 0.00)"),
        (Found(4, 40, 4, 0.999), "4 groups found, as many as planted but not the same ones (ARI 0.99)"),
        (Found(3, 40, 1, 0.0), "3 groups found where 1 was planted (ARI 0.00)"),
        (Found(1, 40, 1, 1.0), "1 group found that holds everyone, equal to the planted one"),
        (Found(4, 40), "4 groups found;"),
        (Found(40, 40, 4, 0.0), "no groups found, every client is alone"),
        (Found(4, 20, 4, 1.0), "4 groups found among the 20 clients of the last round, equal to the planted ones"),
    ],
)
def test_groups(found: Found, expected: str) -> None:
    assert f"; {expected}" in sentence(replace(BASE, found=(found,)))


def test_a_method_without_groups_says_nothing_of_them() -> None:
    assert "group" not in sentence(replace(BASE, found=()))


@pytest.mark.parametrize(
    ("fedavg", "expected"),
    [
        (None, "79.0 MB sent."),
        (79e6, "79.0 MB sent, as much as FedAvg."),
        (79e6 * 3.21, "79.0 MB sent, 3.2 times less than FedAvg."),
        (79e6 / 2.5, "79.0 MB sent, 2.5 times FedAvg's."),
        (79e6 * 12345, "79.0 MB sent, 12,345 times less than FedAvg."),
    ],
)
def test_bytes(fedavg: float | None, expected: str) -> None:
    assert sentence(replace(BASE, sent_fedavg=fedavg)).endswith(f"; {expected}")


def test_a_better_rival_is_named() -> None:
    better = sentence(replace(BASE, rival=("FedAvg", 0.95)))
    assert better.endswith("; FedAvg is more accurate on average (95.0 % against 90.0 %).")
    assert sentence(replace(BASE, rival=("FedAvg", 0.90004))) == sentence(BASE)


def test_several_seeds() -> None:
    three = replace(BASE, seeds=3, gains=(gains(38, 2), gains(40), gains(39, 1)), found=(Found(4, 40, 4, 1.0),) * 3)
    assert sentence(three) == (
        "With SFMTL-Graph, 39 of 40 clients gain from collaborating, 1 loses (mean over 3 seeds); "
        "4 groups found each time, equal to the planted ones; 79.0 MB sent a run, 480 times less than FedAvg."
    )
    same = replace(three, gains=(gains(40),) * 3)
    assert "all 40 clients gain from collaborating, with each of 3 seeds;" in sentence(same)
    uneven = replace(three, gains=(gains(38, 2), gains(38, 2), gains(39, 1)))
    assert "38.3 of 40 clients gain from collaborating, 1.7 lose (mean over 3 seeds)" in sentence(uneven)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((Found(4, 40, 4, 1.0), Found(5, 40, 4, 0.8)), "4 or 5 groups found, equal to {}1 of 2 seeds (mean ARI 0.90)"),
        ((Found(3, 9, 4, 0.6), Found(6, 9, 4, 0.8)), "3 to 6 groups found, equal to {}none of 2 seeds (mean ARI 0.70)"),
        ((Found(4, 40), Found(4, 40)), "4 groups found each time;"),
    ],
)  # fmt: skip
def test_groups_over_seeds(found: tuple[Found, ...], expected: str) -> None:
    text = expected.format("the planted ones with ")
    assert f"; {text}" in sentence(replace(BASE, seeds=2, found=found))
