"""The example of text classification through the whole line."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import EvaluationReport, ExportManifest
from contracts.errors import EXIT_UNPROVEN

REPOSITORY = Path(__file__).parents[3]
CONFIG = REPOSITORY / "configs" / "text.yaml"


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
    done = shardline("run", CONFIG, f"run.root={root}", f"sharding.source={table}", "profile=off", timeout=500)
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
