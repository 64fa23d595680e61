"""What secure sums cost: bytes and seconds of one member and of the server, for one sum.

    python benchmarks/secure_sums.py [FILE.csv]

Members and server run one after another in this process, on one thread; a tenth of the members (at least one of four)
drops out before its masked numbers are sent, which costs the server most. Plain: the bytes of the parameters alone.
Prints a table, and writes docs/results/secure-sums.csv, or another file.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

import torch

from fedkin.engines.secure_sums import MASKED, STEPS, GroupSum, MemoryKeys, SumMember
from fedkin.flow import Mean, Message

CLIENTS = (3, 10, 30, 100)
BYTES = (20_000, 400_000, 2_500_000, 25_000_000)


def measured(clients: int, size: int) -> dict[str, float]:
    """One sum: megabytes that one member sends and receives, seconds of one member, and of the server."""
    vector = {"w": torch.randn(size // 4)}
    ids = [f"client{number:03}" for number in range(clients)]
    signatures = MemoryKeys()
    members = {id: SumMember(id, 100, signatures, 3) for id in ids}
    lost = set(ids[: clients // 10 or int(clients > 3)])
    sums = GroupSum(Mean(), "train", dict.fromkeys(ids, Message()), 3)
    sent = received = member = server = 0.0
    for step in STEPS:
        replies = {}
        for id, message in sums.requests.items():
            begun = time.process_time()
            reply = members[id].answer(step, message, Message(params=vector, n=100) if step == MASKED else None)
            if id == ids[-1]:
                member += time.process_time() - begun
                sent, received = sent + reply.nbytes / 1e6, received + message.nbytes / 1e6
            if step != MASKED:
                replies[id] = reply
            elif id not in lost:
                begun = time.process_time()
                sums.add(id, reply)
                server += time.process_time() - begun
        begun = time.process_time()
        sums.take(replies)  # those with masked numbers are added already
        server += time.process_time() - begun
    assert not sums.failed, sums.failed
    mean = sums.params({"w": torch.zeros(size // 4)})["w"]
    assert float((mean - vector["w"]).abs().max()) < 1e-6
    return {
        "clients": clients, "plain_mb": size / 1e6, "sent_mb": sent, "received_mb": received,
        "member_seconds": member, "server_seconds": server,
    }  # fmt: skip


def main(path: Path) -> None:
    """Measure all sizes, print and write them."""
    torch.set_num_threads(1)
    rows = []
    for size in BYTES:
        for clients in CLIENTS:
            rows.append({name: round(value, 4) for name, value in measured(clients, size).items()})
            print(rows[-1], flush=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs/results/secure-sums.csv")
