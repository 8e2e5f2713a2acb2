"""Text classification through the whole line: trainings that are killed, and the example."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ExportManifest, ShardManifest
from contracts.config import STAGE_KEYS
from contracts.errors import EXIT_UNPROVEN
from tests.trainer.tasks import texts
from tests.trainer.test_kills import kill_in, make

REPOSITORY = Path(__file__).parents[3]
CONFIG = REPOSITORY / "configs" / "text.yaml"
BATCH, SLOT, EPOCHS = 10, 3, 6


def sections(*, ranks: int, num_workers: int = 0) -> dict[str, Any]:
    values = texts.sections(
        train={"global_batch_size": BATCH, "epochs": EPOCHS},
        parallel={"slot_size": SLOT},
        checkpoint={"every_steps": 2},
        data={"num_workers": num_workers},
        resources={"ranks": ranks, "max_attempts": 20},
    )
    return {name: values[name] for name in STAGE_KEYS["train"] if name in values}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_changes_no_bit(text_shards: str, tmp_path: Path) -> None:
    """Dropout is on, slots differ in length, and one training tokenises in loader processes."""
    whole = make(tmp_path, "whole", text_shards, sections(ranks=2, num_workers=1))
    cut = make(tmp_path, "cut", text_shards, sections(ranks=2))
    assert kill_in(whole, ()) == []
    pauses = ("forward:4:0", "backward:9:1")
    assert [at for at, _ in kill_in(cut, pauses)] == list(pauses)
    found, expected = (CheckpointManifest.load(one.output) for one in (cut, whole))
    assert (found.parameters_sha256, found.metrics) == (expected.parameters_sha256, expected.metrics)
    assert expected.headline is not None and expected.headline.metric == "accuracy"
    entry = ShardManifest.load(text_shards).tokenizer
    assert entry is not None
    assert expected.data == {"max_length": 60, "padding": 0, "vocabulary": 400, "tokenizer": entry.crc32c}
    reports = [
        EvaluationReport.load(one.evaluation.uri(training.output))
        for one, training in ((found, cut), (expected, whole))
        if one.evaluation is not None
    ]
    assert len(reports) == 2 and reports[0].details == reports[1].details != {}


def shardline(*arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=REPOSITORY)


@pytest.mark.line
@pytest.mark.timeout(600)
def test_messages_end_in_an_engine_and_answers(tmp_path: Path) -> None:
    """The example of docs/tasks/text.md: accuracy, gates, engine, answers, and the same looked at again."""
    source, root = tmp_path / "raw", tmp_path / "runs"
    subprocess.run([sys.executable, REPOSITORY / "examples" / "texts.py", source], check=True, timeout=60)
    table = source / "messages.csv"
    done = shardline("run", CONFIG, f"run.root={root}", f"sharding.source={table}", timeout=500)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stderr + done.stdout
    (evaluation,) = root.glob("*/train/*/checkpoints/*/evaluation.json")
    report = EvaluationReport.load(storage.normalise(evaluation))
    assert report.metrics["accuracy"] >= 0.9 and report.task == "text_classification"
    (exported,) = root.glob("*/export/*/manifest.json")
    folder, manifest = exported.parent, ExportManifest.load(storage.normalise(exported.parent))
    gates = {(gate.name, gate.precision): gate.status for gate in manifest.gates}
    assert set(gates.values()) == {"passed"}
    assert set(gates) >= {("parity", "fp32"), ("program", "fp32"), ("parity", "fp16"), ("metric", "fp16")}
    # Masks are filled with numbers that fp16 holds: nothing is left in fp32.
    assert manifest.precision == "fp16" and manifest.graph().kept_fp32 == []
    length = manifest.signature.dimensions["length"]
    assert (length.min, length.max, length.multiple) == (8, 64, 8)
    # Triton loads no engine of TensorRT-RTX: there is no repository.
    assert manifest.engine is not None and manifest.served == manifest.engine.name
    assert (folder / manifest.served).stat().st_size == manifest.engine.bytes and not (folder / "triton").exists()
    check_answers(folder, table, tmp_path)
    shards = storage.local_path(report_shards(root))
    looked = shardline("verify", folder, "--shards", shards, timeout=280)
    assert looked.returncode == EXIT_UNPROVEN, looked.stdout + looked.stderr
    assert looked.stdout.splitlines()[1].split()[:2] == ["passed", "program"]


def report_shards(root: Path) -> str:
    (manifest,) = root.glob("*/shard/*/manifest.json")
    return storage.normalise(manifest.parent)


def check_answers(folder: Path, table: Path, work: Path) -> None:
    """Whoever predicts on the texts gets what was measured on them, from a file or one by one."""
    with table.open() as stream:
        rows = list(csv.DictReader(stream))
    (work / "lines").write_text("".join(f"{row['text']}\n" for row in rows))
    answered = shardline("predict", folder, "--lines", work / "lines", "-o", "json", "--top", "1")
    assert answered.returncode == 0, answered.stderr
    answers = [json.loads(line) for line in answered.stdout.splitlines()]
    assert len(answers) == len(rows)
    assert sum(one["labels"] == [row["label"]] for one, row in zip(answers, rows, strict=True)) / len(rows) >= 0.9
    answered = shardline("predict", folder, rows[0]["text"], "", "-o", "csv")
    _, first, empty = answered.stdout.splitlines()
    assert f",{rows[0]['label']}," in first and empty.startswith(",")
