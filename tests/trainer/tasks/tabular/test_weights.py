"""Weights that a table's training starts from: columns, values of categories and classes are matched by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, ShardManifest
from contracts.artifacts.shards import FieldEntry
from contracts.errors import ModelError
from contracts.stage import run_stage
from sharding.task import shard
from tests.trainer.tasks.tabular.tables import (
    COLUMNS,
    FIELDS,
    LABELS,
    category,
    column,
    make_rows,
    manifest,
    numbers,
    table_task,
    target,
    write_shards,
    write_table,
)
from tests.trainer.weights.exports import write_export
from tests.trainer.weights.test_training import run
from trainer.checkpoint.loading import load_model_state
from trainer.tasks.classes.labels import write_json
from trainer.weights.source import find_source
from trainer.weights.start import StartWeights, find_head, match_inputs, start_from

CLASSIFICATION, REGRESSION = "tabular_classification", "tabular_regression"


def shards(towns: str = "ABC", columns: str = "xyz", classes: str = "pq", *, mean: float = 1.0) -> ShardManifest:
    own = [column(name, mean=mean + place, std=2.0 + place) for place, name in enumerate(columns)]
    label = FieldEntry(kind="class", classes=[*classes], columns=["y"])
    found = manifest(label, values=numbers(*own), town=category(*towns, columns=["town"]))
    return found.model_copy(update={"classes": [*classes]})


def network(name: str, own: ShardManifest, seed: int, **model: Any) -> tuple[Any, Any]:
    task = table_task(name, own, model=model)
    torch.manual_seed(seed)
    return task, task.build_model().eval()


def export(folder: Path, name: str, own: ShardManifest, **model: Any) -> tuple[str, Any]:
    """Return an export's folder, as its weights and table.json are, and the network in it."""
    task, net = network(name, own, 1, **model)
    said = {"target": task.document()["target"]} if name == REGRESSION else {"labels": own.classes}
    folder.mkdir()
    write_json(folder / "table.json", {"format_version": 1, **said, "fields": task.document()["fields"]})
    write_export(folder, net, task, list(own.classes), ["table.json"])
    return storage.normalise(folder), net


def start(uri: str, task: Any, net: Any, least: float = 0.0) -> Any:
    wanted = StartWeights(uri, find_source(uri).sha256(), least)
    return start_from(net, wanted, find_head(task), match=lambda source: match_inputs(task, source))


def outputs(net: Any, towns: str, town: str, values: dict[str, float], columns: str = "xyz") -> torch.Tensor:
    """Return the outputs for a row."""
    place = towns.index(town) + 1 if town in towns else 0
    with torch.no_grad():
        found: torch.Tensor = net(torch.tensor([[values[name] for name in columns]]), torch.tensor([[place]]))
    return found[0]


ROW = {"x": 3.0, "y": -1.0, "z": 0.5}


@pytest.mark.parametrize("architecture", ["mlp", "table_transformer"])
@pytest.mark.parametrize("name", [CLASSIFICATION, REGRESSION])
def test_an_exports_folder_is_taken_whole(name: str, architecture: str, tmp_path: Path) -> None:
    own = shards() if name == CLASSIFICATION else manifest(target(), x=numbers(column("x")), town=category("A", "B"))
    uri, theirs = export(tmp_path / "export", name, own, architecture=architecture)
    task, net = network(name, own, 2, architecture=architecture)
    found = start(uri, task, net)
    assert (found.kind, found.matched_fraction, found.missing, found.unexpected) == ("export", 1.0, [], [])
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(net.state_dict()[key], tensor), key


@pytest.mark.parametrize("architecture", ["mlp", "table_transformer"])
def test_other_values_columns_and_classes_are_matched_by_name(architecture: str, tmp_path: Path) -> None:
    """Of as many towns, numbers and classes, so that every shape fits."""
    uri, theirs = export(tmp_path / "export", CLASSIFICATION, shards(), architecture=architecture)
    task, net = network(CLASSIFICATION, shards("BCD", "zxy", "qp", mean=9.0), 2, architecture=architecture)
    assert all(net.state_dict()[key].shape == tensor.shape for key, tensor in theirs.state_dict().items()), (
        "each tensor fits by its shape"
    )
    found = start(uri, task, net)
    assert found.classes_taken == ["q", "p"] and 0.9 < found.matched_fraction < 1.0
    for town in ("B", "C", "unseen"):
        expected = outputs(theirs, "ABC", town, ROW)
        torch.testing.assert_close(outputs(net, "BCD", town, ROW, "zxy"), expected.flip(0), msg=town)
    # A town that the source does not know is drawn, and not another one's.
    known = torch.stack([outputs(theirs, "ABC", town, ROW).flip(0) for town in "ABC"])
    assert not (outputs(net, "BCD", "D", ROW, "zxy") - known).abs().sum(1).lt(1e-4).any()


@pytest.mark.parametrize("architecture", ["mlp", "table_transformer"])
def test_more_values_are_no_unseen_ones(architecture: str, tmp_path: Path) -> None:
    uri, _ = export(tmp_path / "export", CLASSIFICATION, shards("AB"), architecture=architecture)
    task, net = network(CLASSIFICATION, shards("ABCDE"), 2, architecture=architecture)
    start(uri, task, net)
    assert net.largest.tolist() == [5]
    assert not torch.equal(outputs(net, "ABCDE", "E", ROW), outputs(net, "ABCDE", "unseen", ROW))


def test_another_target_keeps_its_own_scale(tmp_path: Path) -> None:
    own = manifest(target(mean=500.0, std=9.0), x=numbers(column("x")))
    uri, _ = export(tmp_path / "export", REGRESSION, own)
    other = FieldEntry(kind="number", statistics=[column("rent", mean=1.0, std=2.0)], columns=["rent"])
    task, net = network(REGRESSION, manifest(other, x=numbers(column("x"))), 2)
    head = net.body.head.weight.clone()
    start(uri, task, net)
    assert net.target.tolist() == [1.0, 2.0] and torch.equal(net.body.head.weight, head)


def test_a_column_of_one_value_there_is_not_ignored_here(tmp_path: Path) -> None:
    uri, _ = export(tmp_path / "export", REGRESSION, manifest(target(), x=numbers(column("x", std=0.0), column("y"))))
    task, net = network(REGRESSION, manifest(target(), x=numbers(column("x", std=4.0), column("y", std=3.0))), 2)
    start(uri, task, net)
    assert net.scale.tolist() == [0.25, 0.25]


def test_where_columns_cannot_be_matched_others_are_refused_by_name(tmp_path: Path) -> None:
    model = {"architecture": "mlp", "arguments": {"depth": 0}}
    uri, theirs = export(tmp_path / "export", CLASSIFICATION, shards(), **model)
    for own, given in (
        (shards("ABD"), "column 'town' has 3 values there, 3 here"),
        (shards(columns="zxy"), "numbers x, y, z there, z, x, y here"),
    ):
        with pytest.raises(ModelError, match=given):
            start(uri, *network(CLASSIFICATION, own, 2, **model))
    task, net = network(CLASSIFICATION, shards(), 2, **model)
    assert start(uri, task, net).matched_fraction == 1.0
    assert torch.equal(net.body.head.weight, theirs.body.head.weight)


def test_of_unknown_columns_nothing_that_belongs_to_columns_is_taken(tmp_path: Path) -> None:
    """Of a file, and of a folder of another task, whose document is another."""
    uri, theirs = export(tmp_path / "export", CLASSIFICATION, shards())
    (tmp_path / "export" / "table.json").write_text('{"fields": ["x"], "labels": ["p", "q"]}')
    for where in (uri, f"{uri}/model.safetensors"):
        task, net = network(CLASSIFICATION, shards(), 2)
        drawn = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        found = start(where, task, net)
        assert found.missing == ["mean", "scale", "body.embeddings.0.weight", "body.layers.0.weight"]
        assert torch.equal(net.body.layers[0].weight, drawn["body.layers.0.weight"])
        assert torch.equal(net.body.layers[3].weight, theirs.body.layers[3].weight)


def test_columns_are_part_of_the_hash(tmp_path: Path) -> None:
    uri, _ = export(tmp_path / "export", CLASSIFICATION, shards())
    before = find_source(uri).sha256()
    path = tmp_path / "export" / "table.json"
    path.write_text(path.read_text().replace('"B"', '"E"'))
    assert find_source(uri).sha256() != before


@pytest.mark.line
@pytest.mark.timeout(300)
def test_a_training_goes_on_from_one_of_other_towns(tmp_path: Path) -> None:
    """Real stages: a checkpoint's manifest has the columns, and what was taken is in that of the next training."""
    first = write_shards(tmp_path / "first", CLASSIFICATION)
    other = tmp_path / "other"
    other.mkdir()
    at = COLUMNS.index("town")
    rows = [[*row[:at], "Rome" if row[at] == "Lima" else row[at], *row[at + 1 :]] for row in make_rows(120)]
    section = {
        "source": str(write_table(other / "table.csv", rows)),
        "fields": FIELDS | {"label": LABELS[CLASSIFICATION]},
    }
    text = json.dumps({"sharding": {**section, "splits": {"train": 0.5, "validation": 0.2, "test": 0.3}}})
    assert run_stage("shard", shard, ["--output", str(other / "shards"), "--config-json", text]) == 0
    config: dict[str, Any] = {
        "task": {"name": CLASSIFICATION},
        "model": {"architecture": "mlp", "arguments": {"width": 16}},
        "train": {"global_batch_size": 10, "epochs": 1, "learning_rate": 1e-9, "warmup_fraction": 0.0},
        "parallel": {"slot_size": 5},
        "resources": {"ranks": 1},
    }
    source = run(tmp_path / "one", first, config)
    config["model"]["weights"] = source
    uri = run(tmp_path / "two", storage.normalise(other / "shards"), config)
    one, two = (CheckpointManifest.load(at) for at in (source, uri))
    report = two.initial
    assert report is not None and report.missing == [] and report.classes_taken == one.classes
    vocabularies = [
        next(field["vocabulary"] for field in own.data["fields"] if "vocabulary" in field) for own in (one, two)
    ]
    shared = [town for town in vocabularies[0] if town in vocabularies[1]]
    assert "Oslo" in shared and "Lima" not in shared and "Rome" in vocabularies[1]
    assert report.matched_fraction < 1.0
    tables = [load_model_state(at, own)["body.embeddings.0.weight"] for at, own in ((source, one), (uri, two))]
    for town in shared:
        rows_of = [table[1 + names.index(town)] for table, names in zip(tables, vocabularies, strict=True)]
        torch.testing.assert_close(*rows_of, atol=1e-5, rtol=0)
