"""PACFL: principal angles against scipy, and the groups that they make."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from fedkin.federation import Client, Federation, Task
from fedkin.methods.pacfl import Pacfl, angles, directions
from support import after, samples_of


@pytest.mark.parametrize("measure", ["smallest", "sum"])
def test_angles_are_those_of_scipy(measure: str) -> None:
    draw = np.random.default_rng(0)
    bases = [np.linalg.qr(draw.normal(size=(9, r)))[0] for r in (2, 3, 4)]
    found = angles([torch.from_numpy(b) for b in bases], [torch.from_numpy(b) for b in bases], measure)
    for i in range(3):
        for j in range(3):
            principal = np.degrees(subspace_angles(bases[i], bases[j]))
            expected = principal.min() if measure == "smallest" else principal.sum()
            assert found[i, j] == pytest.approx(expected, abs=1e-4)


def test_directions_span_the_leading_left_singular_vectors_of_each_class() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(40, 12)), draw.integers(0, 2, 40)
    basis = directions(x, y, 2)
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-10)
    for label in (0, 1):
        left = np.linalg.svd(x[y == label].T)[0][:, :2]
        np.testing.assert_allclose(basis @ (basis.T @ left), left, atol=1e-10)


def by_subspace() -> Federation:
    """Eight clients whose samples lie near one of two planes."""
    draw = np.random.default_rng(2)
    planes = [np.linalg.qr(draw.normal(size=(10, 2)))[0] for _ in range(2)]
    clients = []
    for number in range(8):
        plane = planes[number % 2]
        x = (draw.normal(size=(40, 2)) * 3) @ plane.T + 0.01 * draw.normal(size=(40, 10))
        samples = samples_of(x, (x @ plane[:, 0] > 0).astype(np.int64))
        clients.append(Client(f"c{number}", samples, samples, f"g{number % 2}"))
    return Federation(clients, Task(2, (10,)))


def test_clients_of_one_plane_share_a_model() -> None:
    engine, _ = after(Pacfl(vectors=2), 2, by_subspace())
    cluster = engine.server.state["cluster"]
    assert len(set(cluster.values())) == 2
    assert all((cluster[f"c{i}"] == cluster[f"c{j}"]) == (i % 2 == j % 2) for i in range(8) for j in range(8))
