"""A graph that stays the same is recorded once: the page knows until when each one stood."""

from __future__ import annotations

from pathlib import Path

from fedkin.graph import load_graph
from fedkin.report.collect import collect
from report.made import make_run


def test_a_frame_stands_until_the_next_graph_and_the_last_to_the_end(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=9, still=3, owned=4)
    assert [load_graph(path).round for path in sorted((folder / "graphs").iterdir())] == [1, 2, 3]
    run = collect([folder])["runs"][0]
    graph = run["graph"]
    assert [(frame["round"], frame["until"]) for frame in graph["frames"]] == [(1, 1), (2, 2), (3, 9)]
    assert (graph["history"]["rounds"], graph["history"]["until"]) == ([1, 2, 3], [1, 2, 9])
    assert run["sharing"]["until"] == 9


def test_between_graphs_that_are_not_kept_a_frame_does_not_stretch(tmp_path: Path) -> None:
    """45 rounds, each with another graph; 40 frames: none of these stood for more than its round."""
    graph = collect([make_run(tmp_path / "run", rounds=45, clients=4)])["runs"][0]["graph"]
    assert len(graph["frames"]) == 40
    assert all(frame["until"] == frame["round"] for frame in graph["frames"])
