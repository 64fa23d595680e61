"""Nets of transformers and timm as bodies: frozen or with adapters, small and with random values."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save_file
from torch import nn

import fedkin
from fedkin.errors import ConfigError
from fedkin.federation import Federation, Task
from fedkin.learning import Net
from fedkin.learning.models import MODELS, Mixed, transformer
from fedkin.learning.models.pretrained import library
from fedkin.running.experiment import Experiment, load
from fedkin.running.export import export_model
from fedkin.running.exported import outputs
from fedkin.running.loop import run_experiment
from fedkin.settings import parse
from support import module_at, same

gone = [name for name in ("transformers", "peft", "timm") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,  # the packages are installed before the slow tests only
    pytest.mark.skipif(bool(gone), reason=f"{gone} not installed: pip install 'fedkin[transformers]'"),
    # What the packages themselves call, which is not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning"),
]  # fmt: skip
EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrained_nets.py"
nets = module_at(EXAMPLE)
Timm, Transformers = nets.Timm, nets.Transformers
PLAN = {"rounds": 2, "lr": 0.1, "batch_size": 4, "local_steps": 2}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def hugging() -> Any:
    return library("transformers")


def bert(dropout: float = 0.1, cls: str = "BertForSequenceClassification") -> Any:
    config = hugging().BertConfig(
        vocab_size=60, max_position_embeddings=12, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        num_labels=2, **SMALL,
    )  # fmt: skip
    return getattr(hugging(), cls)(config)


def texts(clients: int = 3, each: int = 15) -> Federation:
    """Token ids with padding 0; class 1 where one of the words 1 to 5 is in them."""
    rng = np.random.default_rng(0)
    x = rng.integers(6, 60, (clients * each, 10))
    y = rng.integers(0, 2, len(x))
    x[y == 1, 1] = rng.integers(1, 6, int(y.sum()))
    for row, length in enumerate(rng.integers(3, 11, len(x))):
        x[row, length:] = 0
    return Federation.from_arrays(x, y, client=[f"site-{row % clients}" for row in range(len(x))])


def test_features_and_head_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model, x = bert().eval(), torch.tensor([[5, 6, 7, 0, 0], [9, 8, 7, 6, 5]])
    with torch.no_grad():
        want = model(input_ids=x, attention_mask=(x != 0).long()).logits
        body, head = (module.eval() for module in transformer(model, head="classifier"))
        torch.testing.assert_close(head(body(x)), want)
        # Padding counts for nothing, whether it is told or found.
        torch.testing.assert_close(body({"input_ids": x, "attention_mask": (x != 0).long()}), body(x))
        torch.testing.assert_close(body(x[:1, :3]), body(x[:1]))
        inner = bert(cls="BertModel").eval()
        z = inner(input_ids=x, attention_mask=(x != 0).long()).last_hidden_state
        pooled = {p: transformer(inner, nn.Identity(), pool=p)[0](x) for p in ("mean", "first", "last")}
    torch.testing.assert_close(pooled["mean"], torch.stack([z[0, :3].mean(0), z[1].mean(0)]))
    torch.testing.assert_close(pooled["first"], z[:, 0])
    torch.testing.assert_close(pooled["last"], torch.stack([z[0, 2], z[1, 4]]))
    with pytest.raises(ConfigError, match=r"head = 'clasifier': BertForSequence.* did you mean 'classifier'"):
        transformer(bert(), head="clasifier")


def test_only_adapters_and_head_travel_and_dropout_is_repeatable(tmp_path: Path) -> None:
    def make(task: Task) -> tuple[nn.Module, nn.Module]:
        return transformer(bert(), adapters={"rank": 2, "dropout": 0.1})

    federation = texts()
    one, two, other = (
        fedkin.run("fedavg", federation, model=make, training=PLAN, seed=3, settings=settings)
        for settings in ({}, {}, {"engine": "loopback"})
    )
    names = list(one.models["site-0"])
    assert all("lora_" in name or name.startswith("head.") for name in names)
    # Query and value of one layer, each A [2, 16] and B [16, 2]; the head is 16 x 2 + 2.
    assert one.summary["parameters"] == 2 * (2 * 16 + 16 * 2) + 34
    assert max(message[5] for message in one.messages) <= one.summary["parameters"] + 1
    assert same(one.models, two.models)
    assert same(one.models, other.models)
    moved = one.models["site-0"]["body.net.bert.encoder.layer.0.attention.self.query.lora_B.default.weight"]
    assert bool(moved.any())
    net = Net.build(lambda: make(federation.task), 0)
    before = net.fingerprint()
    net.frozen["body.net.bert.embeddings.word_embeddings.weight"][0, 0] += 1
    assert net.fingerprint() != before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with config.json and model.safetensors."""
    place = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    bert(0.0, "BertModel").save_pretrained(place)
    return place


def test_every_engine_and_mode_gives_one_result(folder: Path) -> None:
    model = Transformers(path=folder, adapters={"rank": 2})

    def models(clients: int, **how: Any) -> Any:
        return fedkin.run("fedavg", texts(clients), model=model, training=PLAN, settings=how).models["site-0"]

    assert same(models(2), models(2, mode="fast"))
    assert same(models(1), models(1, mode="workers", workers=1))


def from_toml(tmp_path: Path, model: dict[str, Any], method: str, **sections: Any) -> Experiment:
    federation = texts()
    x = np.concatenate([client.train.x[client.train.rows] for client in federation.values()])
    y = np.concatenate([client.train.labels() for client in federation.values()])
    site = np.concatenate([[id] * len(client.train) for id, client in federation.items()])
    np.savez(tmp_path / "texts.npz", x=x, y=y, client=site)
    return written(tmp_path / "texts.toml", {
        "name": "texts", "data": {"source": "npz", "path": str(tmp_path / "texts.npz"), "codes": True},
        "scenario": {"name": "natural"}, "model": model, "training": PLAN, "method": {"name": method}, **sections,
    })  # fmt: skip


def written(path: Path, table: dict[str, Any]) -> Experiment:
    """The experiment of this table, which names the example's nets."""
    path.write_text(tomli_w.dumps({"own": [str(EXAMPLE)], **table}))
    return load(path)


@pytest.fixture(scope="module", autouse=True)
def _only_here() -> Iterator[None]:
    before = dict(MODELS)
    yield
    for name in set(MODELS) - set(before):
        del MODELS[name]


def test_from_settings_to_predictions_and_a_program(tmp_path: Path, folder: Path) -> None:
    for name, kind in (("adapters", {"adapters": {"rank": 2}}), ("frozen", {"frozen": True})):
        model = {"name": "transformers", "path": str(folder), **kind}
        result = run_experiment(from_toml(tmp_path, model, "fedavg"), tmp_path, tmp_path / name)
        models = fedkin.load(tmp_path / name)
        x = np.array([[1, 9, 8, 0, 0, 0, 0, 0, 0, 0], [33, 2, 9, 9, 9, 9, 9, 9, 9, 9]])
        assert models.predict(x).shape == (2,)
        engine_head = result.models["site-0"]["head.weight"]
        assert torch.equal(dict(models.model().named_parameters())["head.weight"], engine_head)
    export_model(models, None, "torch", tmp_path / "bert.pt2")
    np.testing.assert_allclose(outputs(x, tmp_path / "bert.py"), models.probabilities(x), rtol=1e-5, atol=1e-6)
    index = json.loads((tmp_path / "adapters/models/index.json").read_text())
    assert index["nets"][0]["frozen"] == "frozen-1.safetensors"


def test_peers_with_unlike_backbones_share_prototypes_and_heads(tmp_path: Path, folder: Path) -> None:
    torch.manual_seed(1)
    other = tmp_path / "distilbert"
    config = hugging().DistilBertConfig(vocab_size=60, max_position_embeddings=12, dim=12, n_layers=1, n_heads=2,
                                        hidden_dim=16)  # fmt: skip
    hugging().DistilBertModel(config).save_pretrained(other)
    nets = {
        "bert": {"name": "transformers", "path": str(folder), "adapters": {"rank": 2}},
        "distil": {"name": "transformers", "path": str(other), "adapters": {"rank": 2, "on": ["q_lin", "v_lin"]}},
    }
    model = {"name": "mixed", "bodies": ["bert", "distil"], "width": 8, "nets": nets}
    experiment = from_toml(tmp_path, model, "mapl", methods={"mapl": {"method": {"augment": {"on": False}}}})
    made = experiment.for_method("mapl")
    assert isinstance(made.model, Mixed)
    run_experiment(made, tmp_path, tmp_path / "run")
    models = fedkin.load(tmp_path / "run")
    assert len(models) == 3
    x = np.array([[1, 9, 8, 0, 0, 0, 0, 0, 0, 0]])
    assert all(models.predict(x, client=id).shape == (1,) for id in models.clients)


def test_files_that_changed_or_lack_values_are_refused(tmp_path: Path) -> None:
    bert(0.0, "BertModel").save_pretrained(tmp_path / "m")
    model = Transformers(path=tmp_path / "m")
    assert Transformers.model_validate(model.model_dump()) == model
    bert(0.0, "BertModel").save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="its files are not those with which this was begun"):
        Transformers.model_validate(model.model_dump())
    (tmp_path / "m/model.safetensors").unlink()
    task = Task(2, (10,), codes=("x",))
    torch.save(bert(0.0, "BertModel").state_dict(), tmp_path / "m/pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"cannot be opened .* model.safetensors"):
        Transformers(path=tmp_path / "m").build(task)
    (tmp_path / "m/pytorch_model.bin").unlink()
    save_file({"embeddings.word_embeddings.weight": torch.zeros(60, 16)}, tmp_path / "m/model.safetensors",
              {"format": "pt"})  # fmt: skip
    with pytest.raises(ConfigError, match=r"the files have no values of .* and \d+ more"):
        Transformers(path=tmp_path / "m").build(task)


@pytest.mark.parametrize(
    ("task", "why"),
    [(Task(2, (10,)), r"bert needs token ids \[length\] as whole numbers"),
     (Task(2, (13,), codes=("x",)), r"texts have 13 tokens, and bert takes 12; set data.length")],
)  # fmt: skip
def test_inputs_that_the_model_does_not_take(folder: Path, task: Task, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Transformers(path=folder).build(task)
    with pytest.raises(ConfigError, match=r"timm has no 'resnet81'; did you mean"):
        Timm(net="resnet81").build(Task(2, (1, 8, 8)))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging = hugging().utils.logging
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


def test_from_a_table_of_token_ids_with_the_padding_of_the_model(tmp_path: Path, folder: Path) -> None:
    rows = [f"{row % 2},s{row % 3},{1 + row % 2} 9 8{' 7' * (row % 4)}" for row in range(30)]
    (tmp_path / "texts.csv").write_text("\n".join(["label,site,ids", *rows]))

    def experiment(padding: int) -> Experiment:
        return written(tmp_path / "e.toml", {
            "name": "texts", "scenario": {"name": "natural"}, "method": {"name": "fedavg"}, "training": PLAN,
            "data": {"source": "csv", "path": str(tmp_path / "texts.csv"), "target": "label", "client": "site",
                     "tokens": "ids", "padding": padding},
            "model": {"name": "transformers", "path": str(folder), "frozen": True},
        })  # fmt: skip

    wrong = experiment(3)
    with pytest.raises(ConfigError, match=r"texts are filled up with 3, and padding is 0 to the model; set data"):
        wrong.setup(wrong.federation(tmp_path))
    result = run_experiment(experiment(0), tmp_path, tmp_path / "run")
    assert result.summary["parameters"] == 34


# -- which files and options are refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("pretrained", "set model.path"), ("checkpoint_path", "set model.path"), ("pretrained_cfg", "set model.path"),
        ("pretrained_cfg_overlay", "set model.path"), ("cache_dir", "set model.path"),
        ("num_classes", "the task decides"), ("in_chans", "the task decides"),
    ],
)  # fmt: skip
def test_options_that_load_values_from_elsewhere_are_refused(option: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"model.options.*{option}: .*{why}"):
        parse(Timm, {"net": "resnet18", "options": {option: "x", "img_size": 8}}, "model")


def test_a_net_of_timm_has_the_values_of_a_safetensors_file_and_of_no_other(tmp_path: Path) -> None:
    task, path = Task(2, (1, 32, 32)), tmp_path / "values.safetensors"
    drawn = library("timm").create_model("resnet18", num_classes=0, in_chans=1)
    save_file(drawn.state_dict(), path)
    body, _ = Timm(net="resnet18", path=path).build(task)
    pairs = list(zip(body.state_dict().values(), drawn.state_dict().values(), strict=True))
    assert pairs
    assert all(torch.equal(one, other) for one, other in pairs)
    torch.save(drawn.state_dict(), tmp_path / "values.pth")
    for file in ("values.pth", "gone.safetensors"):
        with pytest.raises(ConfigError, match=r"model: resnet18 for inputs \[1, 32, 32\]: "):
            Timm(net="resnet18", path=tmp_path / file).build(task)


@pytest.mark.parametrize("file", ["config.json", "model-1.safetensors", "model.safetensors.index.json", "other.json"])
def test_the_hash_is_of_all_settings_and_values(tmp_path: Path, file: str) -> None:
    for name in ("config.json", "model-1.safetensors", "README.md"):
        (tmp_path / name).write_text("one")
    before = nets.digest_of(tmp_path)
    (tmp_path / "README.md").write_text("three")
    assert nets.digest_of(tmp_path) == before
    (tmp_path / file).write_text("three")
    assert nets.digest_of(tmp_path) != before
