"""What ships with a model of texts: predict.py alone, its gate, and `shardline predict`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    Attempt,
    CheckpointManifest,
    ExportManifest,
    FileEntry,
    Gate,
    GraphEntry,
    ShardManifest,
    ShippedFile,
)
from contracts.config.load import parse_config
from contracts.own_code import append_code
from rehearsal.gcs import BucketServer
from tests.conftest import OWN_CODE
from tests.export_fields import served_file
from tests.trainer.data.conftest import evaluation_batches
from tests.trainer.tasks.text_classification.texts import CLASSES, sections
from trainer import judge
from trainer.export.bundle.shipped import Shipped
from trainer.export.graph.onnx_graph import EXAMPLE_BATCH, export_graph
from trainer.export.inputs import Inputs
from trainer.export.targets import Builder
from trainer.export.workshop import hash_file
from trainer.model.build import build_model, example_inputs
from trainer.predict import predict_task
from trainer.predict.runtimes import softmax
from trainer.tasks.classes.shipped_answers import Expected
from trainer.tasks.load import load_task
from trainer.tasks.text_classification import bundle

GRAPH = "model.fp32.onnx"
CONFIG = sections(model={"architecture": "texts_network:mean_of_tokens", "arguments": {"width": 16}})
CONFIG["code"] = {"path": str(OWN_CODE)}


@dataclass(frozen=True)
class Export:
    """An export of a network that was not trained, and what it says of the test split in torch."""

    folder: Path
    shards_uri: str
    shards: ShardManifest
    texts: list[str]
    logits: np.ndarray
    right: int

    @property
    def score(self) -> float:
        return float(softmax(self.logits).max(axis=1).mean())

    def check(self, folder: Path | None = None, **expected: Any) -> Gate:
        return bundle.try_program(self.shipped(folder), Expected(**{"evaluation_right": self.right, **expected}))

    def shipped(self, folder: Path | None = None) -> Shipped:
        return Shipped(folder or self.folder, GRAPH, self.shards_uri, self.shards, 1)


def write_manifest(folder: Path, signature: Any, names: list[str], **changes: Any) -> ExportManifest:
    uri = storage.normalise(folder)
    graph = GraphEntry(**FileEntry.of(uri, GRAPH).model_dump(), sha256=hash_file(folder / GRAPH), precision="fp32")
    document = ExportManifest(
        fingerprint="9" * 16,
        task="text_classification",
        signature=signature,
        precision="fp32",
        asked_precision="fp32",
        tried=[Attempt(precision="fp32", outcome="kept")],
        verdict="unproven",
        opset=20,
        inputs={},
        outputs={},
        graphs=[graph],
        served=served_file(GRAPH, graph.sha256),
        engines=[],
        gates=[],
        parity={},
        checkpoint_sha256="0" * 64,
        shards_fingerprint="5" * 16,
        made_with={},
        files=[ShippedFile.of(uri, name) for name in names],
        **{"headline": {"metric": "accuracy", "direction": "max"}, "metrics": {}, "test_samples": 1, **changes},
    ).sealed()
    (folder / MANIFEST_NAME).write_bytes(document.to_json())
    return document


@pytest.fixture(scope="module")
def export(text_shards: str, tmp_path_factory: pytest.TempPathFactory) -> Export:
    append_code(OWN_CODE)
    place = tmp_path_factory.mktemp("text")
    config, shards = parse_config(CONFIG, where="test"), ShardManifest.load(text_shards)
    task = load_task(config, shards, text_shards)
    torch.manual_seed(1)
    model = build_model(task, config).eval()
    (place / "export").mkdir()
    example = example_inputs(task, EXAMPLE_BATCH)
    export_graph(model, place / "export" / GRAPH, signature=task.signature, example=example, opset=20)
    checkpoint = CheckpointManifest(
        order={"kind": "full"},
        task={"name": "image_classification", "arguments": {}},
        fingerprint="7" * 16,
        finished=True,
        step=7,
        position=448,
        epoch=1,
        slot_size=8,
        model={},
        classes=list(shards.classes),
        data=task.document(),  # type: ignore[attr-defined]
        shards_fingerprint=shards.fingerprint,
        metrics={},
        best_step=7,
        parameters_sha256="0" * 64,
        environment={},
        files=[],
    )
    inputs = Inputs("file:///none", checkpoint, text_shards, shards, Builder("tensorrt_rtx", "1", ()), config)
    names = bundle.write_bundle(place / "export", inputs, task.signature, model_name=GRAPH, max_batch=5)
    assert names == [
        "tokenizer.json",
        "labels.json",
        "text.json",
        "predict.py",
        "serving.py",
        "reading.py",
        "runtimes.py",
    ]
    logits, labels = [], []
    with torch.no_grad():
        for batch, _ in evaluation_batches(text_shards, shards, "test", task, 7):
            logits.append(model(batch["tokens"], batch["mask"]).numpy())
            labels += batch["label"].tolist()
    found = np.concatenate(logits)
    right = int((found.argmax(axis=1) == labels).sum())
    texts = [text for part in bundle._read_texts(Shipped(Path(), "", text_shards, shards, 1)) for text, _ in part]
    write_manifest(
        place / "export",
        task.signature,
        names,
        test_samples=len(labels),
        metrics={"fp32": {"accuracy": right / len(labels)}},
    )
    return Export(place / "export", text_shards, shards, texts, found, right)


@pytest.fixture
def copy(export: Export, tmp_path: Path) -> Path:
    """The export's folder, to be damaged."""
    return Path(shutil.copytree(export.folder, tmp_path / "copy"))


def test_a_sound_bundle_passes(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_READ_TEXTS", 4)
    gate = export.check(score=export.score)
    assert (gate.name, gate.precision, gate.status, gate.reason) == ("bundle", "fp32", "passed", "")
    assert gate.ran.startswith("the shipped predict.py with onnxruntime 1.") and "tokenizers 0." in gate.ran
    expected = {"texts": len(export.texts), "right": export.right, "right_difference": 0, "unanswered": 0}
    assert expected.items() <= gate.figures.items()
    assert 1 < float(gate.figures["classes_predicted"] or 0) <= 3
    assert 0 <= float(gate.figures["score_difference"] or 0) < 1e-6
    assert 0 < export.right < len(export.texts)


def set_value(name: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "text.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


def shuffle_labels(folder: Path) -> None:
    (folder / "labels.json").write_text(json.dumps([CLASSES[1], CLASSES[0], CLASSES[2]]))


def change_tokenizer(folder: Path) -> None:
    """Swap the identifiers of two letters."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def edit_program(folder: Path, old: str, new: str) -> None:
    path = folder / "predict.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "mutate",
    [
        pytest.param(shuffle_labels, id="shuffled labels"),
        pytest.param(change_tokenizer, id="tokenizer"),
        pytest.param(set_value("max_length", 16), id="length"),
        pytest.param(lambda folder: (folder / "predict.py").unlink(), id="no program"),
        pytest.param(lambda folder: edit_program(folder, "mask[row, : len(text)] = 1", "mask[row] = 1"), id="mask"),
        pytest.param(
            lambda folder: edit_program(folder, "runtimes.likeliest_of(logits, self.labels, top)", "{}"),
            id="no answers",
        ),
        pytest.param(lambda folder: edit_program(folder, "np.isfinite(logits).all()", "False"), id="unanswered"),
    ],
)
def test_every_mutation_is_seen(export: Export, copy: Path, mutate: Callable[[Path], object]) -> None:
    mutate(copy)
    gate = export.check(copy, score=export.score)
    assert gate.status == "failed" and gate.reason, gate
    gate.model_dump_json()


def test_two_exports_are_compared_with_their_own_tokens(
    export: Export, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = [token for token in vocabulary if token not in special]
    moved = zip(tokens, [vocabulary[token] for token in (*tokens[7:], *tokens[:7])], strict=True)
    tokenizer["model"]["vocab"] = vocabulary | dict(moved)
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    document = ExportManifest.load(storage.normalise(export.folder))
    names = [entry.name for entry in document.files]
    write_manifest(copy, document.signature, names, metrics={"fp32": {"accuracy": 1.0}})
    given = ["--candidate", str(copy), "--production", str(export.folder), "--shards", export.shards_uri]
    assert judge.main(given) in (0, 1)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["metric"], found["samples"]) == ("accuracy", len(export.texts))
    assert found["production"] == pytest.approx(export.right / len(export.texts))
    assert found["candidate"] != found["production"]


def test_nothing_to_compare_with_decides_nothing(export: Export) -> None:
    assert export.check(evaluation_right=None).status == "not decidable"
    assert export.check(evaluation_right=None, transformed_right=export.right).status == "passed"
    assert export.check(transformed_right=export.right + 1).status == "failed"


def test_a_finished_export_is_looked_at_again(export: Export, copy: Path, tmp_path: Path) -> None:
    document = ExportManifest.load(storage.normalise(export.folder))

    def again(folder: Path, work: str) -> Gate:
        (tmp_path / work).mkdir()
        return bundle.check_again(export.shipped(folder), document, tmp_path / work)

    assert again(export.folder, "one").status == "passed"
    # The program is this package's own.
    (copy / "predict.py").write_text("raise SystemExit(9)")
    assert again(copy, "two").status == "passed"
    shuffle_labels(copy)
    assert again(copy, "three").status == "failed"


def test_an_engine_is_tried_with_the_same_inputs(export: Export, tmp_path: Path) -> None:
    document = ExportManifest.load(storage.normalise(export.folder))
    stored = bundle.read_inputs(export.shipped(), document, tmp_path)
    (batch,) = stored.batches(100)
    assert stored.samples == len(export.texts) and set(batch) == {"tokens", "mask"}
    assert batch["tokens"].shape[1] % 8 == 0 and batch["mask"].sum(axis=1).max() > batch["tokens"].shape[1] - 8


# --- the program alone ------------------------------------------------------------------------------------------------


def run(folder: Path, *arguments: str, given: bytes | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """Run it as its user does, from another folder; return exit code, answers and stderr."""
    command = [sys.executable, "-I", str(folder / "predict.py"), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False, cwd=folder.parent)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, answers, done.stderr.decode()


def test_answers_are_those_of_torch(export: Export, tmp_path: Path) -> None:
    scores = softmax(export.logits)
    lines = "".join(f"{json.dumps(text)}\n" for text in export.texts).encode()
    code, answers, said = run(export.folder, "--json-lines", "-", "--top", "3", "--json", given=lines)
    assert (code, said) == (0, "")
    for answer, expected in zip(answers, scores, strict=True):
        order = np.argsort(-expected)
        assert [one["label"] for one in answer["predictions"]] == [CLASSES[place] for place in order]
        assert answer["score"] == pytest.approx(expected.max(), abs=1e-6)
        assert answer["label"] == CLASSES[order[0]]
    # Of all ways to give texts, batches of five and padding to 64 tokens, the answers are the same to a last digit.
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in export.texts[:7]))
    for arguments in (export.texts[:7], ["--lines", str(tmp_path / "texts")]):
        code, found, _ = run(export.folder, *arguments, "--json")
        assert code == 0 and [one["label"] for one in found] == [one["label"] for one in answers[:7]]
        assert all(set(one) == {"label", "score"} for one in found)


def test_what_is_no_text_is_answered_with_an_error_and_all_others_as_well(export: Export) -> None:
    lines = b'"good"\n{"text": "good"}\n5\n{"words": "x"}\n{\n"\\ud800"\n\n"good"\n'
    code, answers, said = run(export.folder, "--json-lines", "-", "--json", given=lines)
    assert code == 2
    assert ["label" in answer for answer in answers] == [True, True, False, False, False, False, True]
    assert answers[0] == pytest.approx(answers[1]) and answers[5] == {
        "error": "it has characters that are none of Unicode"
    }
    assert (
        "error: row 3: it is no text, and no object with a text 'text'" in said and "row 5: the line is no JSON" in said
    )
    code, answers, said = run(export.folder, "--lines", "-", "--json", given=b"one\r\n\n\xff\ntwo")
    assert code == 2 and ["label" in answer for answer in answers] == [True, True, False, True]


def test_a_file_is_no_text(export: Export, tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text,label\na,b\n")
    for argument in (str(table), f"{tmp_path}/", "gs://bucket/texts.csv"):
        code, answers, said = run(export.folder, argument, "--json")
        assert (code, answers) == (2, []) and f"error: {argument} is " in said
        assert f"--manifest {argument}" in said and f"--lines {argument}" in said
    # What only looks like one, or is longer than a name may be, is a text.
    code, answers, _ = run(export.folder, "texts.csv", "a/b", "x" * 5000, "and gs://bucket/texts.csv", "--json")
    assert code == 0 and len(answers) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "none of texts was given"),
        (["--lines", "/none/there"], "/none/there cannot be read: No such file"),
    ],
)
def test_bad_arguments_are_refused(export: Export, arguments: list[str], words: str) -> None:
    code, answers, said = run(export.folder, *arguments)
    assert (code, answers) == (2, []) and words in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_length", 0), ("model", "../x"), ("format_version", 2)],
)
def test_an_entry_that_is_not_allowed_is_named(export: Export, copy: Path, name: str, value: Any) -> None:
    set_value(name, value)(copy)
    code, _, said = run(copy, "a")
    assert code == 2 and f"{name} {json.dumps(value)}" in said and "to do:" in said


# --- shardline predict ------------------------------------------------------------------------------------------------


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    def run_command(folder: Path, *arguments: str) -> tuple[int, str, str]:
        code = predict_task.main([f"--folder={storage.normalise(folder)}", *arguments])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    yield run_command


def test_the_command_gives_the_answers_of_the_program(
    export: Export, answer: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    _, expected, _ = run(export.folder, *export.texts[:3], "--top", "2", "--json")
    code, out, said = answer(export.folder, *export.texts[:3], "--top", "2", "--json")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (0, expected)
    assert said.startswith("predict: model.fp32.onnx by onnxruntime 1.")
    (tmp_path / "lines").write_text("a text\n" + "long " * 50 + "\n")
    code, out, _ = answer(export.folder, "--lines", str(tmp_path / "lines"), "--top", "3")
    first, second = out.splitlines()
    assert code == 0 and first.startswith("a text: ") and second.startswith("long long ") and "…: " in second
    assert all(name in first for name in CLASSES)


def test_texts_of_a_bucket_are_read_and_a_file_that_is_not_there_is_no_damage(
    export: Export, answer: Callable[..., tuple[int, str, str]], bucket_server: BucketServer
) -> None:
    storage.publish("gs://bucket-1/texts/lines", b"good\nbad\n")
    code, out, _ = answer(export.folder, "--lines", "gs://bucket-1/texts/lines")
    assert code == 0 and [line.partition(":")[0] for line in out.splitlines()] == ["good", "bad"]
    for missing in ("gs://bucket-1/none", "/none/there"):
        code, out, said = answer(export.folder, "--lines", missing)
        assert (code, out) == (2, "") and f"{missing} cannot be read" in said and "damaged" not in said


def test_a_file_that_was_changed_answers_nothing(
    export: Export, copy: Path, answer: Callable[..., tuple[int, str, str]]
) -> None:
    change_tokenizer(copy)
    code, out, said = answer(copy, "a text")
    assert (code, out) == (2, "") and "tokenizer.json has bytes" in said and "is damaged" in said
