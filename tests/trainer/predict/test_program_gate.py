"""The gate `program`: the shipped predict.py on the source's own files sees what parity on tensors does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import ExportManifest, Gate, ShardManifest
from contracts.stage import run_stage
from records.source import SOURCE_NAME
from tests.trainer.export import colours
from tests.trainer.predict import words
from trainer.export.arrays import Batches, write_batches
from trainer.export.engine import open_graph
from trainer.predict import program_gate
from trainer.predict.bundle import ExportedFiles, read_inputs
from trainer.predict.program_gate import judge_program, judge_program_again


@dataclass(frozen=True)
class Export:
    """An export with shards, and the outputs of its graph on the trainer's own inputs."""

    files: ExportedFiles
    outputs: Batches

    def judge(self, folder: Path | None = None, **changes: Any) -> Gate:
        return judge_program(replace(self.files, folder=folder or self.files.folder, **changes), self.outputs)


def make_export(place: Path, task: str, shards: ShardManifest, graph: str) -> Export:
    places = range(shards.splits["test"].samples)
    files = ExportedFiles(place / "export", task, graph, storage.normalise(place / "shards"), shards, places)
    run = open_graph(files.folder / graph, threads=1)
    batches = (run(inputs) for inputs in read_inputs(files, range(files.samples), 32))
    return Export(files, write_batches(place / "outputs", batches))


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    place = tmp_path_factory.mktemp("coloured")
    shards = colours.write_shards(place / "shards")
    colours.write_export(place / "export")
    return make_export(place, "image_classification", shards, colours.GRAPH_NAME)


@pytest.fixture
def copy(export: Export, tmp_path: Path) -> Path:
    """The export's folder, to be damaged."""
    return Path(shutil.copytree(export.files.folder, tmp_path / "copy"))


def test_a_sound_program_passes(export: Export) -> None:
    gate = export.judge()
    assert (gate.name, gate.precision, gate.status, gate.reason) == ("program", "fp32", "passed", "")
    assert gate.ran.startswith("onnxruntime 1.")
    assert (gate.figures["samples"], gate.figures["other_labels"]) == (64, 0)
    assert float(gate.figures["score_difference"] or 0) < 1e-6
    assert gate.limits == {"other_labels": 0, "score_difference": 1e-4}


def set_value(name: str, value: Any, *, file: str = "preprocess.json") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def swap_labels(folder: Path) -> None:
    labels = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps([labels[1], labels[0], *labels[2:]]))


def edit_program(old: str, new: str, *, file: str = "predict.py") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        pytest.param(swap_labels, "other labels", id="labels"),
        pytest.param(set_value("mean", [colours.MEAN[0] + 0.004, *colours.MEAN[1:]]), "scores are up to", id="mean"),
        pytest.param(set_value("std", [0.1, 0.3, 0.25]), "", id="std"),
        pytest.param(set_value("image_size", colours.SIZE - 1), "exit code", id="image size"),
        pytest.param(edit_program("images.transpose", "images[..., ::-1].transpose", file="pixels.py"), "", id="BGR"),
        pytest.param(lambda folder: (folder / "predict.py").unlink(), "exit code 2: ", id="no program"),
    ],
)
def test_every_mutation_is_seen(export: Export, copy: Path, mutate: Callable[[Path], None], words: str) -> None:
    mutate(copy)
    gate = export.judge(copy)
    assert (gate.status, words in gate.reason) == ("failed", True), gate
    gate.model_dump_json()


def test_a_program_that_hangs_fails(export: Export, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_gate, "_TIME_LIMIT_S", 0.5)
    edit_program("def main() -> int:", "def main() -> int:\n    import time\n    time.sleep(60)")(copy)
    assert "timed out" in export.judge(copy).reason


def test_again_runs_this_package_s_program_on_the_files(export: Export, copy: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (copy / "predict.py").write_text("raise SystemExit(9)")
    files = replace(export.files, folder=copy)
    document = ExportManifest.load(storage.normalise(copy)).model_copy(update={"gates": [export.judge()]})
    gate = judge_program_again(files, document, tmp_path / "one")
    assert (gate.status, gate.figures["samples"]) == ("passed", 64)
    for number, mutate in enumerate((set_value("mean", [0.5, 0.5, 0.4]), swap_labels)):
        mutate(copy)
        (tmp_path / str(number)).mkdir()
        assert judge_program_again(files, document, tmp_path / str(number)).status == "failed"


def test_several_labels_are_held_to_their_thresholds(tmp_path: Path) -> None:
    shards = colours.write_shards(tmp_path / "shards", several=True)
    colours.write_export(tmp_path / "export", thresholds=[0.4, 0.3, 0.45, 0.4, 0.35, 0.4])
    export = make_export(tmp_path, "image_multilabel", shards, colours.GRAPH_NAME)
    gate = export.judge()
    assert (gate.status, gate.reason) == ("passed", "")
    edit_program(">= self.thresholds[place]", ">= 0.42")(export.files.folder)
    assert "other labels than the graph" in export.judge().reason


def test_texts_of_the_source_are_asked_about(tmp_path: Path) -> None:
    from sharding.task import shard

    random = np.random.default_rng(0)
    # Some are the path of a file of this machine, which the program refuses.
    files = [str(tmp_path / "texts.csv"), __file__]
    texts = ["\n".join(random.choice([*words.CLASSES, "else"], 1 + number % 20)) for number in range(40)] + files
    rows = [f'"{text}",{words.CLASSES[number % 3]},test' for number, text in enumerate(texts)]
    rows += [f"{name},{name},train" for name in words.CLASSES]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label,split", *rows]))
    (tmp_path / "tokenizer.json").write_text(words.make_tokenizer().to_str())
    fields = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    sharding = {
        "source": str(tmp_path / "texts.csv"),
        "fields": fields,
        "tokenizer": {"file": str(tmp_path / "tokenizer.json")},
    }
    arguments = ["--output", str(tmp_path / "shards"), "--config-json", json.dumps({"sharding": sharding})]
    assert run_stage("shard", shard, arguments) == 0
    shards = ShardManifest.load(storage.normalise(tmp_path / "shards"))
    words.write_export(tmp_path / "export")
    export = make_export(tmp_path, "text_classification", shards, words.GRAPH_NAME)
    gate = export.judge()
    assert (gate.status, gate.figures["samples"], gate.reason) == ("passed", 40, "")
    set_value("max_length", 8, file="preprocess.json")(export.files.folder)
    assert export.judge().status == "failed"


@pytest.fixture(scope="module")
def transparent(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """An export and shards of pictures of which a half is transparent, black below: the rest tells the class."""
    from sharding.task import shard

    place = tmp_path_factory.mktemp("transparent")
    for label, name in enumerate(colours.CLASSES):
        (place / "raw" / name).mkdir(parents=True)
        for number in range(4):
            pixels = np.array(Image.fromarray(colours.draw(label, number)).convert("RGBA"))
            pixels[: len(pixels) // 2] = 0
            Image.fromarray(pixels).save(place / "raw" / name / f"{number}.png")
    shares = {"train": 0.3, "validation": 0.1, "test": 0.6}
    section = {"source": str(place / "raw"), "splits": shares, "stratify": "exact"}
    arguments = ["--output", str(place / "shards"), "--config-json", json.dumps({"sharding": section})]
    assert run_stage("shard", shard, arguments) == 0
    shards = ShardManifest.load(storage.normalise(place / "shards"))
    colours.write_export(place / "export", shards)
    return make_export(place, "image_classification", shards, colours.GRAPH_NAME)


def test_the_gate_asks_about_the_source_s_own_files(transparent: Export) -> None:
    gate = transparent.judge()
    assert gate.status == "passed"
    assert gate.figures["changed_by_sharding"] == gate.figures["samples"]


def test_a_program_that_drops_transparency_fails_the_gate(transparent: Export, tmp_path: Path) -> None:
    """With all defaults a run said 98 %, `predict` on the same files 33 %, and the gate said passed."""
    colours.write_export(tmp_path, transparent.files.shards)
    set_value("background", None)(tmp_path)
    assert transparent.judge(tmp_path).status == "failed"


def test_files_that_are_no_longer_what_was_sharded_are_asked_about_as_stored(transparent: Export) -> None:
    source = storage.local_path(transparent.files.shards_uri) / SOURCE_NAME
    there = source.read_text()
    source.write_text(transparent.files.shards_uri)
    gate = transparent.judge()
    source.write_text(there)
    assert (gate.status, gate.figures["changed_by_sharding"]) == ("passed", 0)
