"""The bundle gate: the shipped predict.py on the source's own files sees what parity on tensors does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import Gate, ShardManifest
from tests.trainer.export import colours
from tests.trainer.export.colours import GRAPH_NAME
from tests.trainer.export.graphs import image_signature, run_onnx
from trainer.data.reader import ShardReader
from trainer.export.bundle import known_server, shipped
from trainer.export.bundle.shipped import Shipped
from trainer.export.gates.arrays import StoredArrays, store_arrays
from trainer.predict.runtimes import softmax
from trainer.tasks.classes.shipped_answers import Expected
from trainer.tasks.image_classification import bundle
from trainer.tasks.images import gate as gate_module
from trainer.tasks.images.transforms import EvaluationTransform


@dataclass(frozen=True)
class Export:
    """An export, the shards, and what the model says of them by the trainer's own way."""

    folder: Path
    shards_uri: str
    shards: ShardManifest
    right: int
    score: float
    known: tuple[StoredArrays, StoredArrays]
    """The trainer's own inputs, and what the graph gives for them."""

    def check(self, folder: Path | None = None, *, knows: bool = False, **changes: Any) -> Gate:
        places = changes.pop("places", None)
        shipped = Shipped(folder or self.folder, GRAPH_NAME, self.shards_uri, self.shards, 1, places=places)
        expected = Expected(**{"evaluation_right": self.right, **changes})
        return bundle.try_program(shipped, expected, known=self.known if knows else None)


def make_export(place: Path, **options: Any) -> Export:
    shards = colours.write_shards(place / "shards", **options)
    colours.write_export(place / "export")
    return make_known(place, shards)


def make_known(place: Path, shards: ShardManifest) -> Export:
    """Return what is known of an export and shards below a folder."""
    uri = storage.normalise(place / "shards")
    reader = ShardReader(uri, shards, "test")
    mean, std = colours.MEAN, colours.STD
    transform = EvaluationTransform(colours.SIZE, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))
    samples = [reader.sample(place) for place in range(len(reader))]
    images = transform.normalise(np.stack([transform.decode(sample["image"]) for sample in samples])).numpy()
    logits = run_onnx(place / "export" / GRAPH_NAME, images)
    right = int((logits.argmax(axis=1) == [sample["label"] for sample in samples]).sum())
    known = store_arrays(place / "inputs", [{"images": images}]), store_arrays(place / "outputs", [{"logits": logits}])
    return Export(place / "export", uri, shards, right, float(softmax(logits).max(axis=1).mean()), known)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    return make_export(tmp_path_factory.mktemp("coloured"))


@pytest.fixture
def copy(export: Export, tmp_path: Path) -> Path:
    """The export's folder, to be damaged."""
    return Path(shutil.copytree(export.folder, tmp_path / "copy"))


def test_a_sound_bundle_passes(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    # Four chunks and a rest, batches of five that do not divide them.
    monkeypatch.setattr(gate_module, "CHUNK_IMAGES", 16)
    assert 0 < export.right < 72
    gate = export.check(score=export.score)
    assert (gate.name, gate.precision, gate.status, gate.reason) == ("bundle", "fp32", "passed", "")
    assert gate.ran.startswith("the shipped predict.py with onnxruntime 1.")
    expected = {"images": 72, "right": export.right, "evaluation_right": export.right, "right_difference": 0}
    assert expected.items() <= gate.figures.items()
    assert (gate.figures["unanswered"], gate.figures["classes_predicted"]) == (0, 6)
    # Blue, green and red at least; noise makes coloured what is called black, grey and white.
    assert gate.figures["coloured_images"] == 72
    assert (gate.figures["source_paths"], gate.figures["source_paths_with_class"]) == (24, 24)
    assert gate.limits == {"right_difference": 0, "score_difference": gate_module.MAX_SCORE_DIFFERENCE}
    assert 0 <= float(gate.figures["score_difference"] or 0) < 1e-6


def test_a_graph_that_has_run_on_the_same_inputs_runs_on_few_again(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A proxy is nobody to ask about this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(known_server.parity, "open_graph", None)
    gate = export.check(score=export.score, knows=True)
    assert (gate.status, gate.reason) == ("passed", "")
    found = {name: gate.figures[name] for name in ("images", "right", "own_runtime", "other_inputs", "unanswered")}
    assert found == {"images": 72, "right": export.right, "own_runtime": 32, "other_inputs": 0, "unanswered": 0}
    assert export.check(knows=True, places=range(50)).figures.get("own_runtime") is None, "few run as they are"


def test_other_inputs_run_through_the_graph_again(export: Export, copy: Path) -> None:
    set_value("mean", [0.75, 0.5, 0.4])(copy)
    known, alone = (export.check(copy, knows=knows).figures for knows in (True, False))
    assert known["other_inputs"] == 72
    assert known["right"] == alone["right"] != export.right
    assert known["mean_score"] == pytest.approx(alone["mean_score"], abs=1e-6)


def test_what_its_own_runtime_does_wrong_is_seen_on_few(export: Export, copy: Path) -> None:
    run = "session.run(names, dict(inputs))"
    edit_program(copy, run, f"[2 * array for array in {run}]", name="runtimes.py")
    gate = export.check(copy, knows=True)
    assert gate.status == "failed"
    assert "its own ONNX Runtime answers 32 of 32 images otherwise than the graph did" in gate.reason


def set_value(name: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "preprocess.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def shuffle_labels(folder: Path) -> None:
    labels = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps([labels[1], labels[0], *labels[2:]]))


PRINT = "print(json.dumps({**({kind.key: asked.name} if kind.key else {}), **answer}), flush=True)"


def edit_program(folder: Path, old: str, new: str, *, name: str = "predict.py") -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "mutate",
    [
        pytest.param(shuffle_labels, id="shuffled labels"),
        pytest.param(set_value("mean", [0.75, 0.5, 0.4]), id="mean"),
        pytest.param(set_value("std", [0.1, 0.3, 0.25]), id="std"),
        pytest.param(set_value("range", [0, 255]), id="range"),
        pytest.param(set_value("layout", "NHWC"), id="layout"),
        pytest.param(set_value("color", "BGR"), id="channels"),
        pytest.param(set_value("model", "none.onnx"), id="model"),
        pytest.param(lambda folder: (folder / "predict.py").unlink(), id="no program"),
        pytest.param(lambda folder: edit_program(folder, "_RULES, [", "None, ["), id="broken program"),
    ],
)
def test_every_mutation_is_seen(export: Export, copy: Path, mutate: Callable[[Path], None]) -> None:
    mutate(copy)
    gate = export.check(copy)
    assert gate.status == "failed", gate
    assert gate.reason
    gate.model_dump_json()


def test_what_moves_no_answer_is_seen_by_the_average_probability(export: Export, copy: Path) -> None:
    mean = [colours.MEAN[0] + 0.004, *colours.MEAN[1:]]
    set_value("mean", mean)(copy)
    assert export.check(copy).status == "passed"
    gate = export.check(copy, score=export.score)
    assert (gate.status, "average probability" in gate.reason) == ("failed", True)


def test_why_the_program_failed_is_in_its_own_words(export: Export, copy: Path) -> None:
    set_value("layout", "NHWC")(copy)
    reason = export.check(copy).reason
    assert "predict.py ended with exit code 2: error: " in reason
    assert "[None, 12, 12, 3]" in reason
    assert "answers are right" not in reason


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ('print("hello", flush=True)', "predict.py said 'hello'"),
        ("return 3", "ended with exit code 3: (it said nothing)"),
        ("pass", "ended with exit code -9: (it said nothing)"),
    ],
)
def test_a_program_that_does_not_answer_fails_the_gate(
    export: Export, copy: Path, new: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "_CHUNK_LIMIT_S", 0.5 if new == "pass" else 300.0)
    edit_program(copy, PRINT, new, name="serving.py")
    assert words in export.check(copy).reason


def test_images_without_an_answer_fail_the_gate(export: Export, copy: Path) -> None:
    edit_program(copy, "image = decode(content, self.background, self.max_pixels)", 'raise serving.BadSample("no")')
    gate = export.check(copy)
    assert (gate.status, gate.figures["unanswered"], gate.figures["mean_score"]) == ("failed", 72, None)
    assert "72 images got no answer, the first: no" in gate.reason


def test_channels_in_another_order_do_not_show_on_grey_images(tmp_path: Path) -> None:
    export = make_export(tmp_path, grey=True, per_class=4)
    set_value("color", "BGR")(export.folder)
    gate = export.check()
    assert gate.figures["coloured_images"] == 0
    assert "no test image is coloured: channels in another order may not be seen" in gate.reason


def test_without_an_evaluation_the_trainers_transform_is_compared_with(export: Export) -> None:
    assert export.check(evaluation_right=None).status == "not decidable"
    gate = export.check(evaluation_right=None, transformed_right=export.right)
    assert (gate.status, gate.figures["transformed_right"]) == ("passed", export.right)
    assert "evaluation_right" not in gate.figures
    assert export.check(transformed_right=export.right + 1).status == "failed"


def test_a_part_of_the_split_is_asked_about(export: Export) -> None:
    gate = export.check(evaluation_right=None, torch_right=3, places=[0, 7, 40])
    assert (gate.figures["images"], gate.figures["torch_right"]) == (3, 3)
    assert gate.status == ("passed" if gate.figures["right"] == 3 else "failed")
    assert export.check(evaluation_right=None, torch_right=4, places=[0, 7, 40]).status == "failed"


def test_an_empty_test_split_decides_nothing(export: Export) -> None:
    empty = export.shards.splits["train"]
    shards = export.shards.model_copy(update={"splits": {**export.shards.splits, "test": empty}})
    shipped = Shipped(export.folder, GRAPH_NAME, export.shards_uri, shards, 1)
    gate = bundle.try_program(shipped, Expected(evaluation_right=0))
    assert (gate.status, gate.ran) == ("not decidable", "not run: the test split is empty")


def test_the_bundle_says_what_evaluation_does(export: Export) -> None:
    signature = image_signature(colours.SIZE, len(colours.CLASSES))
    assert bundle.write_bundle(export.folder, colours.make_inputs(), signature, model_name=GRAPH_NAME, max_batch=5) == [
        "labels.json",
        "preprocess.json",
        "predict.py",
        "serving.py",
        "reading.py",
        "runtimes.py",
    ]
    assert json.loads((export.folder / "labels.json").read_text()) == colours.CLASSES
    values = json.loads((export.folder / "preprocess.json").read_text())
    assert (values["mean"], values["std"], values["image_size"]) == (colours.MEAN, colours.STD, colours.SIZE)
    assert (values["model"], values["max_batch"]) == (GRAPH_NAME, 5)


def test_the_program_finds_nothing_in_its_own_folder(export: Export, copy: Path) -> None:
    (copy / "numpy.py").write_text("raise SystemExit(9)")
    assert export.check(copy).status == "passed"


def test_few_files_lie_on_the_disk_at_a_time(export: Export, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gate_module, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(gate_module.tempfile, "tempdir", str(tmp_path))
    seen: list[int] = []
    add = gate_module.Findings.add

    def counting(*arguments: Any) -> Any:
        seen.append(len(list(tmp_path.glob("shardline-bundle-*/0*"))))
        return add(*arguments)

    monkeypatch.setattr(gate_module.Findings, "add", counting)
    assert export.check().status == "passed"
    assert len(seen) == 72
    assert max(seen) <= 16
    assert list(tmp_path.iterdir()) == []
