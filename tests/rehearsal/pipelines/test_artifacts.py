"""What the report components leave for the console, executed as a pipeline: by kfp's classes, and in a browser."""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from playwright.sync_api import Browser

from components.report import report
from components.report_training import report_training
from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME, ExportManifest, ProfileReport
from contracts.artifacts.classification import RocCurve
from contracts.config import STAGES
from contracts.result import leave_result
from rehearsal.gcs import BucketServer
from tests.browser import NEEDS_CHROMIUM, opened, started_chromium
from tests.inspection.stages.documents import HOSTILE, evaluation, hostile_shards, trained_with_evaluation
from tests.inspection.stages.test_summaries import check_markdown
from tests.inspection.test_summary import CONFIG, DOCUMENTS
from tests.rehearsal.artifacts import KINDS, check_artifact, follow_engine, reported_artifacts
from tests.rehearsal.execution.world import Pipelines, states

LINE, RUN = "gs://line/reported line", "run-1"


@dsl.pipeline(name="reports")  # type: ignore[untyped-decorator]
def reports(line: str, run_id: str) -> None:
    for stage in STAGES:
        given = {"line": line, "run_id": run_id}
        task = report_training(**given) if stage == "train" else report(stage=stage, **given)
        task.set_display_name(f"Report on {stage}").set_caching_options(False)


def publish_line() -> None:
    """Publish what four stages have made of a source that means harm."""
    swept, exported = DOCUMENTS["profile"], DOCUMENTS["export"]
    assert isinstance(swept, ProfileReport) and isinstance(exported, ExportManifest)
    curve = RocCurve(area=0.9, points=[(0.9, 0, 2), (0.5, 1, 3), (0.0, 3, 3)])
    outcome = evaluation([HOSTILE, "plain"], [(0, 0, 2), (0, 1, 1), (1, 1, 3)], [curve, curve])
    documents = {
        "shard": hostile_shards(),
        "profile": swept.model_copy(update={"made_from": {"shards": "s"}}),
        "train": trained_with_evaluation(outcome),
        "export": exported.model_copy(update={"made_from": {"checkpoint": "ab"}}),
    }
    for stage, document in documents.items():
        uri = storage.join(LINE, stage, "0123456789abcdef")
        storage.replace(storage.join(uri, MANIFEST_NAME), document.to_json())
        if stage == "train":
            storage.replace(storage.join(uri, EVALUATION_NAME), outcome)
        leave_result(LINE, RUN, stage, uri, reused=False)
    start = {"id": RUN, "started_at": "2026-11-22T06:00:00Z", "config": CONFIG.model_dump(mode="json")}
    storage.replace(storage.join(LINE, "runs", RUN, "run-start.json"), json.dumps(start).encode())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with started_chromium() as browser:
        yield browser


@NEEDS_CHROMIUM
def test_every_artifact_of_a_run_is_one_that_the_consoles_render(
    make_pipelines: Callable[..., Pipelines],
    bucket_environment: BucketServer,
    chromium: Browser,
    tmp_path: Path,
) -> None:
    publish_line()
    pipelines = make_pipelines()
    job: Any = pipelines.run(reports, line=LINE, run_id=RUN)
    assert set(states(job).values()) == {"SUCCEEDED"}, pipelines.orchestrator_log()
    found = reported_artifacts(job)
    assert set(found) == set(STAGES)
    for stage, artifacts in found.items():
        assert set(artifacts) == set(KINDS) - (set() if stage == "train" else {"classification"})
        for name, artifact in artifacts.items():
            made = check_artifact(name, artifact)
            if name == "metrics":
                assert made.metadata and all(key.startswith(f"{stage}_") for key in made.metadata)
            content = storage.read_bytes(artifact["uri"]).decode()
            if name == "summary":
                check_markdown(content.splitlines())
                assert "<img" not in content
            if name == "page":
                assert "said" not in artifact["metadata"], artifact["metadata"]["said"]
                check_page(chromium, tmp_path / f"{stage}.html", content)
    # kfp's compiler has put the titles into the specification; the service's own name stays.
    assert "Report on shard" in str(reports.pipeline_spec)
    assert follow_engine(found, "sm80") == ["cd" * 32, "ab", "s", "l" * 64]


def check_page(chromium: Browser, path: Path, content: str) -> None:
    assert len(content.encode()) < 1_000_000 and "<script" not in content and "<img src=x" not in content
    path.write_text(content)
    with opened(chromium, path) as shown:
        shown.check_quiet()
        assert shown.page.locator("h1").count() == 1
