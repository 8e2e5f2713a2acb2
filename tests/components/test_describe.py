"""What a finished stage's task leaves for the consoles and for lineage, whatever the stage's documents hold."""

import json
from typing import Any

import pytest

from components.describe import describe
from components.task import INPUTS, MAX_INPUT_BYTES, MAX_METADATA_BYTES, Task
from contracts import storage
from contracts.artifacts import ExportManifest, ProfileReport
from contracts.artifacts.classification import RocCurve
from rehearsal.gcs import BucketServer
from tests.components.tasks import (
    LINE,
    RUN,
    executor_input,
    make_config,
    publish,
    publish_training,
    read_artifacts,
    read_output,
    write_attempt,
)
from tests.inspection.documents import DOCUMENTS, HOSTILE, evaluation, hostile_shards
from tests.inspection.test_metrics import check_markdown, check_numbers
from tests.rehearsal.artifacts import FOLDERS, check_artifact, follow_served

pytestmark = pytest.mark.usefixtures("bucket_server")


def report_on(stage: str, uri: str) -> dict[str, dict[str, Any]]:
    """Describe a stage; return its artifacts."""
    inputs = dict.fromkeys(INPUTS[stage], "gs://bucket-1/x")
    parameters = {"listing": uri} if stage == "shard" else {}
    config = make_config()
    task = Task(executor_input(stage, config, inputs, **parameters))
    describe(task, config, stage, uri)
    task.finish()
    return read_artifacts(stage)


@pytest.fixture
def uris(bucket_server: BucketServer) -> dict[str, str]:
    """What four stages have made of a source that means harm, in a run that goes on."""
    swept, exported = DOCUMENTS["profile"], DOCUMENTS["export"]
    assert isinstance(swept, ProfileReport) and isinstance(exported, ExportManifest)
    curve = RocCurve(area=0.9, points=[(0.9, 0, 2), (0.5, 1, 3), (0.0, 3, 3)])
    found = {
        "shard": publish("shard", hostile_shards().to_json()),
        "profile": publish("profile", swept.model_copy(update={"made_from": {"shards": "s"}}).to_json()),
        "train": publish_training(evaluation([HOSTILE, "plain"], [(0, 0, 2), (0, 1, 1), (1, 1, 3)], curve)),
        "export": publish("export", exported.model_copy(update={"made_from": {"checkpoint": "ab"}}).to_json()),
    }
    start = {"id": RUN, "started_at": "2026-11-22T06:00:00Z", "config": make_config().model_dump(mode="json")}
    storage.replace(f"{LINE}/runs/{RUN}/run-start.json", json.dumps(start).encode())
    for stage, uri in found.items():
        ends = {"time": 5.0, "event": "finish", "uri": uri, "made": HOSTILE}
        write_attempt(stage, f"{RUN}.a", [{"time": 1.0, "event": "start", "launched_at": 1.0}, ends])
    return found


def test_every_artifact_is_one_that_the_consoles_render_and_lineage_follows(uris: dict[str, str]) -> None:
    found = {stage: report_on(stage, uri) for stage, uri in uris.items()}
    expected = {
        "shard": ("shard_samples", 7),
        "profile": ("profile_slot_size", 16),
        "train": ("train_test_accuracy", 0.98765),
        "export": ("export_fp32_accuracy", 0.25),
    }
    for stage, artifacts in found.items():
        kinds = {"metrics", "summary", "page", FOLDERS[stage]} | ({"classes"} if stage == "train" else set())
        assert set(artifacts) == kinds
        for name, artifact in artifacts.items():
            check_artifact(name, artifact)
        folder, metrics = artifacts[FOLDERS[stage]], artifacts["metrics"]["metadata"]
        assert (folder["uri"], folder["metadata"]["contract_uri"]) == (uris[stage], f"{uris[stage]}/manifest.json")
        check_numbers(stage, metrics)
        name, value = expected[stage]
        assert metrics[name] == folder["metadata"][name] == value
        summary = read_output(stage, "summary")
        assert summary.startswith(f"# {stage}\n") and folder["metadata"]["manifest_sha256"] in summary
        check_markdown(summary.splitlines())
        assert "<img" not in summary
    classes = found["train"]["classes"]["metadata"]
    assert classes["confusionMatrix"]["rows"] == [{"row": [2, 1]}, {"row": [0, 3]}]
    assert [point["recall"] for point in classes["confidenceMetrics"]] == [0.0, pytest.approx(2 / 3), 1.0, 1.0, 1.0]
    assert follow_served(found) == ["cd" * 32, "ab", "s", "l" * 64]


@pytest.mark.parametrize(
    ("content", "words"), [(None, "holds no manifest.json"), (b'{"kind": "evaluation"', "is not JSON")]
)
def test_a_damaged_evaluation_is_said_and_fails_nothing(content: bytes | None, words: str) -> None:
    found = report_on("train", publish_training(content))
    check_artifact("classes", found["classes"])
    assert words in found["classes"]["metadata"]["note"]
    assert found["metrics"]["metadata"]["train_test_accuracy"] == 0.98765


def test_what_is_larger_than_the_consoles_take_is_cut_and_said() -> None:
    document = json.loads(DOCUMENTS["train"].to_json())
    document["metrics"] = {f"n{number}": 1.0 for number in range(20_000)}
    document["made_from"] = {f"n{number}": "h" * 64 for number in range(5000)}
    found = report_on("train", publish("train", json.dumps(document).encode()))
    summary = read_output("train", "summary")
    assert "- and 24,928 more in the manifest" in summary
    # The way back is there, whatever else is not.
    assert "/0123456789abcdef`" in summary
    for name, artifact in found.items():
        most = MAX_INPUT_BYTES if name == "model" else MAX_METADATA_BYTES
        assert len(json.dumps(artifact["metadata"])) < most + 100, name
        if name != "metrics":
            assert artifact["metadata"]["contract_uri"].endswith("/0123456789abcdef/manifest.json")
            assert artifact["metadata"]["fingerprint"]
