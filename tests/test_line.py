"""The whole line by its command, on real images: every stage in its own processes."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ExportManifest, ProfileReport, RunRecord
from inspection.report.page import SECTIONS
from tests.browser import CHROMIUM, opened, started_chromium
from tests.conftest import small_config

REPOSITORY = Path(__file__).parents[1]


def write_config(folder: Path, pictures: Path, **sections: dict[str, Any]) -> Path:
    """Write the configuration of a small line whose profile measures two points."""
    changes: dict[str, dict[str, Any]] = {
        "run": {"name": "small", "root": str(folder / "runs")},
        "sharding": {"source": str(pictures)},
        "profile": {
            "method": "sweep",
            "slot_sizes": [4, 8],
            "num_workers": [0],
            "window_s": 0.05,
        },
        "parallel": {"slot_size": "auto"},
        "data": {"num_workers": "auto"},
        "resources": {"threads": 1},
    }
    for name, section in sections.items():
        changes[name] = {**changes.get(name, {}), **section}
    path = folder / "line.yaml"
    path.write_text(yaml.safe_dump(small_config(**changes)))
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]


def shardline(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=500, check=False, cwd=REPOSITORY)


@pytest.mark.line
@pytest.mark.timeout(600)
def test_images_become_an_engine_with_its_proof(tmp_path: Path) -> None:
    """What `make demo` runs, with a root of its own: the digits reach their accuracy."""
    digits = tmp_path / "digits"
    subprocess.run([sys.executable, "examples/digits.py", str(digits)], check=True, cwd=REPOSITORY)
    config = ["configs/digits.yaml", f"run.root={tmp_path / 'runs'}", f"sharding.source={digits}"]
    done = shardline("run", *config)
    assert done.returncode == 0, done.stderr
    line = tmp_path / "runs/digits"
    assert done.stdout.splitlines()[-1] == str(line)
    record = RunRecord.parse((line / "run.json").read_bytes(), where="run.json")
    assert record.state == "succeeded"
    assert [(stage.name, stage.state) for stage in record.stages] == [
        (name, "done") for name in ("shard", "profile", "train", "export")
    ]
    assert record.wall_s > sum(stage.wall_s for stage in record.stages)
    assert 0 < record.process_start_s < sum(stage.wall_s for stage in record.stages)

    exported = next(stage for stage in record.stages if stage.name == "export").uri
    assert exported is not None
    manifest = ExportManifest.load(exported)
    assert manifest.engine is not None and manifest.served == manifest.engine.name
    engine = storage.local_path(exported) / manifest.served
    assert hashlib.sha256(engine.read_bytes()).hexdigest() == manifest.engine.sha256
    passed = {gate.name for gate in manifest.gates if gate.precision == "fp16" and gate.status == "passed"}
    assert passed >= {"parity", "metric"}
    trained = CheckpointManifest.load(next(stage for stage in record.stages if stage.name == "train").uri or "")
    assert trained.metrics["test_accuracy"] >= 0.97
    # The gates ran 512 of the 515 test samples.
    assert manifest.headline_values["torch"] == pytest.approx(trained.metrics["test_accuracy"], abs=3 / 512)
    assert f"{trained.metrics['test_accuracy']:.4f}" in done.stdout
    assert "not run on a GPU" in done.stdout
    check_use(line, manifest, trained, digits)
    check_look(line, record)
    check_rerun(config, line, record)


def check_use(line: Path, manifest: ExportManifest, trained: CheckpointManifest, pictures: Path) -> None:
    """What was exported answers as training's evaluation did, and looks sound to whoever verifies it."""
    evaluation = EvaluationReport.load(find_evaluation(line))
    assert manifest.headline_values["fp32"] == pytest.approx(evaluation.metrics["accuracy"], abs=3 / 512)
    assert [gate.status for gate in manifest.gates if gate.name == "program"] == ["passed"]
    images = sorted(pictures.rglob("*.png"))[:3]
    done = shardline("predict", line, *images, "-o", "json")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    assert [answer["file"] for answer in answers] == [str(image) for image in images]
    assert {answer["labels"][0] for answer in answers} <= set(trained.classes)
    done = shardline("verify", line)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "unproven: not run on a GPU" in done.stdout


def check_look(line: Path, record: RunRecord) -> None:
    """What a user looks at says what the record says, and its page opens in a browser."""
    done = shardline("inspect", line, "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["id"], found["state"]) == (record.id, "succeeded")
    assert [stage["manifest_sha256"] for stage in found["stages"]] == [s.manifest_sha256 for s in record.stages]
    assert [missing["what"] for missing in found["missing"]] == ["cost"]
    (listed,) = json.loads(shardline("runs", line, "-o", "json").stdout)
    assert listed["headline"]["metric_value"] == record.results["metrics"]["test_accuracy"]
    done = shardline("report", line)
    assert done.returncode == 0, done.stderr
    page = line / "runs" / record.id / "report.html"
    assert done.stdout.splitlines() == [str(page)]
    if CHROMIUM.exists():
        with started_chromium() as browser, opened(browser, page) as shown:
            shown.check_quiet()
            sections = shown.page.eval_on_selector_all("[data-section]", "all => all.map(e => e.dataset.section)")
            assert sections == [name for name, _ in SECTIONS]
            accuracy = f"{record.results['metrics']['test_accuracy']:.2%}".replace("%", "\u00a0%")
            assert accuracy in shown.page.inner_text("main")


def find_evaluation(line: Path) -> str:
    (path,) = line.glob("train/*/checkpoints/*/evaluation.json")
    return storage.normalise(path)


def check_rerun(config: list[str], line: Path, first: RunRecord) -> None:
    """The same command again does nothing."""
    again = shardline("run", *config)
    assert again.returncode == 0, again.stderr
    assert "reused" in again.stdout
    record = RunRecord.parse((line / "run.json").read_bytes(), where="run.json")
    assert {stage.state for stage in record.stages} == {"reused"}
    assert [stage.uri for stage in record.stages] == [stage.uri for stage in first.stages]
    assert record.results == first.results
    assert record.id != first.id

    located = shardline("train", *config)
    assert located.returncode == 0, located.stderr
    assert located.stdout.splitlines()[-1] == str(storage.local_path(first.stages[2].uri or ""))


@pytest.mark.slow
def test_the_format_moves_no_sample(pictures: Path, tmp_path: Path) -> None:
    """Equal parameters from tar and from TFRecord, with the profile's choice pinned."""
    config = write_config(tmp_path, pictures, parallel={"slot_size": 4}, data={"num_workers": 0})
    results = []
    for shard_format in ("webdataset", "tfrecord"):
        override = f"sharding.format={shard_format}"
        assert shardline("shard", config, override).returncode == 0
        done = shardline("train", config, override)
        assert done.returncode == 0, done.stderr
        results.append(CheckpointManifest.load(storage.normalise(done.stdout.splitlines()[-1])))
    assert results[0].parameters_sha256 == results[1].parameters_sha256
    assert results[0].metrics == results[1].metrics
    assert results[0].shards_fingerprint != results[1].shards_fingerprint


@pytest.mark.line
def test_a_failing_stage_ends_the_run_with_its_own_message_and_code(pictures: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, pictures)
    done = shardline("run", config, "data.num_workers=3", "profile.num_workers=[0, 1]")
    assert done.returncode == 2
    assert "error: stage profile: " in done.stderr
    assert "data.num_workers" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not list((tmp_path / "runs/small/profile").glob("*/manifest.json"))
    record = json.loads((tmp_path / "runs/small/run.json").read_text())
    assert record["state"] == "failed"


def descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return
    for child in children:
        yield int(child)
        yield from descendants(int(child))


def wait_for_training(line: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for path in line.glob("train/attempts/*/events.jsonl"):
            for text in path.read_text().splitlines(keepends=True):
                event = json.loads(text) if text.endswith("\n") else {}
                if event.get("event") == "progress" and event["done"] >= step:
                    return
        time.sleep(0.02)
    pytest.fail("training was not reached")


@pytest.mark.line
@pytest.mark.timeout(600)
def test_kill_9_of_the_whole_tree_then_the_same_command(pictures: Path, tmp_path: Path) -> None:
    """Bit-identical parameters to an undisturbed run: two ranks on CPU, fixed seed, pinned cut."""
    pinned: dict[str, Any] = {
        "parallel": {"slot_size": 4},
        "data": {"num_workers": 0},
        "train": {"epochs": 40},
        "checkpoint": {"every_steps": 3},
        # What is compared is the training.
        "profile": {"method": "off"},
        "export": {"runtime": "onnx", "precision": "fp32"},
    }
    whole = write_config(tmp_path, pictures, run={"name": "whole"}, **pinned)
    assert shardline("run", whole).returncode == 0
    step = random.randrange(10, 150)
    killed = write_config(tmp_path, pictures, run={"name": "killed"}, **pinned)
    process = subprocess.Popen(
        command("run", killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY
    )
    wait_for_training(tmp_path / "runs/killed", step)
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    (run,) = (tmp_path / "runs/killed/runs").glob("*/run-start.json")
    assert json.loads(shardline("inspect", run.parent, "-o", "json").stdout)["state"] == "stopped"
    done = shardline("run", killed)
    assert done.returncode == 0, done.stderr
    assert "continues from" in done.stderr

    def last(name: str) -> CheckpointManifest:
        manifests = (tmp_path / "runs" / name).glob("train/*/checkpoints/*/manifest.json")
        return CheckpointManifest.load(storage.normalise(max(manifests)))

    assert last("whole").step == last("killed").step == 200
    assert last("whole").parameters_sha256 == last("killed").parameters_sha256, f"killed at step {step}"


@pytest.mark.slow
def test_a_budget_of_5_s_gives_the_accuracy_of_the_defaults(tmp_path: Path) -> None:
    """The demo's network has BatchNorm, whose batch is a slot: slots of one sample cost four points of accuracy."""
    subprocess.run([sys.executable, "examples/digits.py", str(tmp_path / "raw")], check=True, cwd=REPOSITORY)
    config = [str(REPOSITORY / "configs/digits.yaml"), f"run.root={tmp_path}", f"sharding.source={tmp_path / 'raw'}"]
    config += ["train.epochs=2", "resources.ranks=1", "resources.threads=1"]

    def made(stage: str, *words: str) -> str:
        done = shardline(stage, *config, *words)
        assert done.returncode == 0, done.stderr
        return storage.normalise(done.stdout.splitlines()[-1])

    made("shard")
    report = ProfileReport.load(folder := made("profile", "profile.budget_s=5"))
    assert report.choice.slot_size >= 16
    trained = [
        CheckpointManifest.load(made("train", "--to", str(tmp_path / name), *words))
        for name, words in (("profiled", ["--profile", folder]), ("off", ["profile=off"]))
    ]
    first, second = (each.metrics["test_accuracy"] for each in trained)
    assert second > 0.7 and first >= second - 0.02
    assert [each.profile for each in trained] == [report.fingerprint, ""]
    if not report.choice.measured:
        assert trained[0].parameters_sha256 == trained[1].parameters_sha256
