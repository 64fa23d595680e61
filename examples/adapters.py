"""LoRA adapters on transformers: SFMTL-Graph, MAPL and MAPL+, and what travels against the whole net.

    pip install "fedkin[transformers]"
    python examples/adapters.py                 # small nets with random values: nothing is fetched
    python examples/adapters.py --model FOLDER  # of save_pretrained (config.json, model.safetensors)

Texts are token ids made here: six clients in two groups, which give the same words opposite labels. SFMTL-Graph shares
models along its graph, MAPL+ bodies. MAPL's peers have different nets and send prototypes and heads, no bodies.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from pretrained_nets import Transformers  # beside this file

import fedkin
from fedkin.learning.models import MODELS, Mixed, Model
from fedkin.learning.models.pretrained import library

MODELS["transformers"] = Transformers  # so that `Mixed` can name it

WORDS, LENGTH, SHARE = 200, 12, 40
TRAINING = {"optimiser": "adam", "lr": 0.01, "batch_size": 20, "local_epochs": 2}


def texts(clients: int = 6) -> fedkin.Federation:
    """Texts of word 1 or of word 2 among others; the second half of the clients swaps the labels. 0 is padding."""
    rng = np.random.default_rng(0)
    x = rng.integers(10, WORDS, (clients * SHARE, LENGTH))
    word = rng.integers(0, 2, len(x))
    x[np.arange(len(x)), rng.integers(0, 4, len(x))] = 1 + word
    x[np.arange(LENGTH) >= rng.integers(5, LENGTH + 1, len(x))[:, None]] = 0
    site = np.repeat(np.arange(clients), SHARE)
    group = site >= clients // 2
    return fedkin.Federation.from_arrays(
        x, np.where(group, 1 - word, word), client=[f"site-{n}" for n in site], group=[f"g{n:d}" for n in group]
    )


def folders(place: Path) -> tuple[Path, Path]:
    """Save a small BERT and a small DistilBERT with random values."""
    hugging = library("transformers")
    hugging.set_seed(0)
    hugging.utils.logging.disable_progress_bar()
    bert = hugging.BertConfig(vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                              intermediate_size=128, max_position_embeddings=32)  # fmt: skip
    distil = hugging.DistilBertConfig(vocab_size=WORDS, dim=48, n_layers=2, n_heads=4, hidden_dim=96,
                                      max_position_embeddings=32)  # fmt: skip
    hugging.BertModel(bert).save_pretrained(place / "bert")
    hugging.DistilBertModel(distil).save_pretrained(place / "distilbert")
    return place / "bert", place / "distilbert"


def row(method: str, model: Model, whole: Model, rounds: int, **options: Any) -> None:
    """Print what a method reaches with this model, and what travels with it and with the whole net."""
    settings: dict[str, Any] = {"seed": 0, **options}
    result = fedkin.run(method, texts(), model=model, rounds=rounds, training=TRAINING, **settings)
    large = fedkin.run(method, texts(), model=whole, rounds=1, training={**TRAINING, "local_epochs": 1}, **settings)
    accuracy = result.summary["accuracy"]["mean"]
    sent, of_whole = (r.rounds[0]["bytes"]["up"] / len(r.scores) / 1000 for r in (result, large))
    print(
        f"{method:12} accuracy {accuracy:.2f}  trained {result.summary['parameters']:,} of "
        f"{large.summary['parameters']:,}  kB sent by a client in round 1: {sent:.1f}, whole net {of_whole:.1f}"
    )


def main(rounds: int, model: Path | None) -> None:
    """Print a line for each method."""
    with tempfile.TemporaryDirectory() as place:
        bert, distil = folders(Path(place))
        one = model or bert
        adapters = {"rank": 4}
        views: dict[str, Any] = {"augment": {"on": False}, "warmup": 0}  # token ids have no random views
        light, whole = Transformers.model_validate({"path": one, "adapters": adapters}), Transformers(path=one)
        row("sfmtl-graph", light, whole, rounds, share="model")
        row("mapl-plus", light, whole, rounds, **views)

        def mixed(**more: Any) -> Mixed:
            nets = {folder.name: {"name": "transformers", "path": str(folder), **more} for folder in (bert, distil)}
            return Mixed(bodies=tuple(nets), nets=nets, width=32)

        row("mapl", mixed(adapters=adapters), mixed(), rounds, **views)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=8)
    asked.add_argument("--model", type=Path)
    main(**vars(asked.parse_args()))
