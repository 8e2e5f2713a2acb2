"""What an export of tables ships: predict.py on rows as users have them, and the gate that runs it."""

import argparse
import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest, Gate, ShardManifest
from contracts.config import RunConfig
from rehearsal.gcs import BucketServer
from tests.trainer.tasks.tabular.tables import COLUMNS, make_rows, table_task, write_shards
from tests.trainer.tasks.text_classification.test_bundle import write_manifest
from trainer.data.evaluation import evaluation_batches
from trainer.export.bundle.shipped import Shipped
from trainer.export.gates import parity
from trainer.export.graph import onnx_graph
from trainer.export.inputs import Inputs
from trainer.export.targets import Builder
from trainer.model.build import example_inputs
from trainer.predict.checked_folder import CheckedFolder
from trainer.predict.serving import add_options
from trainer.tasks.tabular import bundle
from trainer.tasks.tabular.bundle import TABLE_NAME

GRAPH = "model.fp32.onnx"


@dataclass
class Exported:
    """A network with random weights, and what ships with it."""

    task: Any
    folder: Path
    shards_uri: str
    shards: ShardManifest

    def outputs(self) -> list[dict[str, Any]]:
        """What the graph gives for the test split, batch by batch."""
        run = parity.open_graph(self.folder / GRAPH, threads=1)
        batches = evaluation_batches(self.shards_uri, self.shards, "test", self.task, 7)
        return [run({name: batch[name].numpy() for name in self.task.signature.inputs}) for batch, _ in batches]

    def judge(self, folder: Path) -> Gate:
        return bundle.try_program(Shipped(folder, GRAPH, self.shards_uri, self.shards, 1), iter(self.outputs()))

    def changed(self, folder: Path, **changes: Any) -> Path:
        """A copy of the folder, with another table.json."""
        folder.mkdir()
        for path in self.folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        said = json.loads((folder / TABLE_NAME).read_bytes()) | changes
        (folder / TABLE_NAME).write_text(json.dumps(said))
        return folder


@pytest.fixture(scope="module", params=["tabular_classification", "tabular_regression"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    root = tmp_path_factory.mktemp("exported")
    uri = write_shards(root / "raw", request.param)
    shards = ShardManifest.load(uri)
    architecture = {"tabular_classification": "mlp", "tabular_regression": "table_transformer"}[request.param]
    task = table_task(request.param, shards, model={"architecture": architecture, "arguments": {"width": 8}})
    torch.manual_seed(0)
    network, folder = task.build_model(), root / "export"
    folder.mkdir()
    example = example_inputs(task, onnx_graph.EXAMPLE_BATCH)
    onnx_graph.export_graph(network, folder / GRAPH, signature=task.signature, example=example, opset=18)
    checkpoint = CheckpointManifest.model_construct(data=task.document(), classes=shards.classes)
    # Of what is exported the bundle reads the checkpoint alone.
    inputs = Inputs("", checkpoint, uri, shards, Builder("tensorrt_rtx", "1", ()), RunConfig())
    names = bundle.write_bundle(folder, inputs, task.signature, model_name=GRAPH, max_batch=16)
    assert names == [TABLE_NAME, "predict.py", "serving.py", "reading.py", "runtimes.py"]
    return Exported(task, folder, uri, shards)


def predict(folder: Path, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(folder / "predict.py"), *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)


def write_rows(path: Path, rows: list[list[Any]], columns: list[str] | None = None) -> Path:
    named = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    columns = columns or ["pulse", "town", "income", "age"]
    if path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            for row in named:
                cells = [row[name] for name in columns]
                writer.writerow([json.dumps(one) if isinstance(one, list) else one for one in cells])
    else:
        path.write_text("".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in named))
    return path


def test_the_gate_passes_and_sees_what_is_wrong(exported: Exported, tmp_path: Path) -> None:
    gate = exported.judge(exported.folder)
    assert (gate.status, gate.reason) == ("passed", "")
    assert gate.figures["rows"] == exported.shards.splits["test"].samples
    assert gate.figures["difference"] == pytest.approx(0.0, abs=1e-5)
    said = json.loads((exported.folder / TABLE_NAME).read_bytes())
    (town,) = [one for one in said["fields"] if one["name"] == "town"]
    others = [one if one is not town else town | {"vocabulary": town["vocabulary"][::-1]} for one in said["fields"]]
    gate = exported.judge(exported.changed(tmp_path / "vocabulary", fields=others))
    assert gate.status == "failed" and "not those of the graph" in gate.reason
    gate = exported.judge(exported.changed(tmp_path / "broken", fields=said["fields"][1:]))
    assert gate.status == "failed" and "predict.py ended with exit code 2" in gate.reason
    if "labels" in said:
        gate = exported.judge(exported.changed(tmp_path / "labels", labels=said["labels"][::-1]))
        assert gate.status == "failed"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ('print(\'{"error": "no"}\')', "row 1 got no answer: no"),
        ("", "predict.py ended with exit code 0"),
        ("print('no JSON')", "asked about row 1, predict.py said 'no JSON'"),
        ("raise SystemExit('its last words')", "its last words"),
    ],
)
def test_the_gate_sees_a_program_that_does_not_answer(
    exported: Exported, tmp_path: Path, program: str, words: str
) -> None:
    folder = exported.changed(tmp_path / "changed")
    (folder / "predict.py").write_text(program)
    gate = exported.judge(folder)
    assert gate.status == "failed" and words in gate.reason


def test_rows_of_both_forms_get_the_same_answers(exported: Exported, tmp_path: Path) -> None:
    rows = make_rows(40)
    tables = [write_rows(tmp_path / name, rows, [*COLUMNS][::-1]) for name in ("rows.csv", "rows.jsonl")]
    one, other = (predict(exported.folder, path) for path in tables)
    assert (one.returncode, other.returncode) == (0, 0), one.stderr + other.stderr
    assert one.stdout == other.stdout
    piped = predict(exported.folder, "-", given=tables[1].read_text())
    assert piped.stdout == one.stdout
    top = predict(exported.folder, tables[0], "--top=2")
    if "value" in one.stdout:
        assert top.returncode == 2 and "--top 2, and the answer to a row is a value" in top.stderr
    else:
        for line, said in zip(one.stdout.splitlines(), top.stdout.splitlines(), strict=True):
            best, second = json.loads(said)["predictions"]
            assert best == json.loads(line) and best["score"] >= second["score"] and best["label"] != second["label"]
    answers = [json.loads(line) for line in one.stdout.splitlines()]
    assert len(answers) == 40
    known = {
        town
        for one in json.loads((exported.folder / TABLE_NAME).read_bytes())["fields"]
        for town in one.get("vocabulary", [])
    }
    unseen = sum(row[1] is not None and row[1] not in known for row in rows)
    assert f"note: column 'town': {unseen} values that training did not see are taken as missing" in one.stderr
    # The network itself, of what the task makes of the rows.
    samples = [
        {"town": row[1] or "", "numbers": [np.nan if row[0] is None else row[0], row[2]], "pulse": row[3], "label": 0}
        for row in rows
    ]
    batch = exported.task.collate([exported.task.prepare(sample, None) for sample in samples], None)
    run = parity.open_graph(exported.folder / GRAPH, threads=1)
    (expected,) = run({name: batch[name].numpy() for name in exported.task.signature.inputs}).values()
    if "value" in answers[0]:
        np.testing.assert_allclose([one["value"] for one in answers], expected, rtol=1e-6)
    else:
        assert [one["label"] for one in answers] == [exported.task.classes[at] for at in expected.argmax(axis=1)]
        shares = np.exp(expected - expected.max(axis=1, keepdims=True))
        np.testing.assert_allclose(
            [one["score"] for one in answers], (shares / shares.sum(axis=1, keepdims=True)).max(axis=1), rtol=1e-5
        )


def test_rows_of_a_bucket_are_named_by_their_uri(
    exported: Exported, tmp_path: Path, bucket_server: BucketServer, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = {"fp32": {"accuracy": 1.0}}
    write_manifest(exported.folder, exported.task.signature, [TABLE_NAME, "predict.py"], metrics=metrics)
    rows = write_rows(tmp_path / "rows.csv", make_rows(3)).read_bytes()
    storage.publish("gs://bucket-1/rows.csv", rows)
    storage.publish("gs://bucket-1/bad.csv", rows + b"x,y\n")

    def answer(*names: str) -> tuple[int, list[str], str]:
        parser = argparse.ArgumentParser()
        add_options(parser)
        with CheckedFolder(storage.normalise(exported.folder)) as folder:
            code = bundle.predict(folder, parser.parse_args(names))
        found = capfd.readouterr()
        return code, found.out.splitlines(), found.err

    code, out, _ = answer("gs://bucket-1/rows.csv", "gs://bucket-1/rows.csv")
    assert code == 0 and len(out) == 6 and out[:3] == out[3:]
    code, out, said = answer("gs://bucket-1/bad.csv")
    assert code == 2 and "error: gs://bucket-1/bad.csv, row 4" in said and "shardline-tables" not in said
    code, _, said = answer("gs://bucket-1/none.csv")
    assert code == 2 and "gs://bucket-1/none.csv cannot be read" in said


def test_a_folder_that_is_not_whole_is_refused(exported: Exported, tmp_path: Path) -> None:
    folder = exported.changed(tmp_path / "changed", max_batch=3)
    (folder / GRAPH).unlink()
    rows = write_rows(tmp_path / "rows.csv", make_rows(3))
    done = predict(folder, rows)
    assert done.returncode == 2 and "is not there" in done.stderr
    (folder / TABLE_NAME).write_text("{}")
    done = predict(folder, rows)
    assert done.returncode == 2 and "the file that the export wrote" in done.stderr
