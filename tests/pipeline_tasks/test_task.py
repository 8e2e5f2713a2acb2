"""The small tasks of the pipeline, by their command, on a line as the stages leave it."""

import hashlib
import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import EVALUATION_NAME, MANIFEST_NAME, Gate, ProfileReport, RunRecord
from contracts.artifacts.classification import RocCurve
from contracts.config import STAGES, RunConfig
from contracts.config.load import with_data_date
from contracts.errors import DataError, StorageError
from contracts.pinned import pin
from contracts.previous import find_previous, read_previous
from contracts.refusal import leave_refusal
from contracts.registration import Registration, find_registration, leave_registration
from contracts.result import find_result, leave_result
from contracts.serving import RELEASES
from inspection.attempts import find_errors
from pipeline_tasks.begin import data_date
from pipeline_tasks.record import read_trace
from pipeline_tasks.task import main
from rehearsal.gcs import BucketServer
from tests.contracts.test_proof import make_engine, make_served
from tests.inspection.stages.documents import evaluation, trained_with_evaluation
from tests.inspection.stages.test_summaries import check_numbers
from tests.inspection.test_summary import CONFIG, DOCUMENTS

RUN = "20261122-060000-0001"


@pytest.fixture
def line(tmp_path: Path) -> str:
    return storage.normalise(tmp_path / "my line")


def publish_config(line: str, config: RunConfig = CONFIG) -> str:
    content = config.model_dump_json().encode()
    uri = storage.join(line, "configs", "c.json")
    storage.replace(uri, content)
    return pin(uri, hashlib.sha256(content).hexdigest())


def publish_output(line: str, stage: str) -> str:
    uri = storage.join(line, stage, "0123456789abcdef")
    storage.replace(storage.join(uri, MANIFEST_NAME), DOCUMENTS[stage].to_json())
    return uri


def write_attempt(line: str, stage: str, attempt: str, events: list[dict[str, Any]]) -> None:
    content = "".join(json.dumps(event) + "\n" for event in events).encode()
    storage.replace(storage.join(line, stage, "attempts", attempt, "events.jsonl"), content)


def executor_input(tmp_path: Path) -> str:
    def artifact(name: str) -> dict[str, Any]:
        return {"artifacts": [{"name": name, "uri": f"gs://b/{name}", "metadata": {"kept": "yes"}}]}

    outputs = {"artifacts": {name: artifact(name) for name in ("metrics", "summary", "page", "classification")}}
    return json.dumps({"outputs": {**outputs, "outputFile": str(tmp_path / "out" / "executor_output.json")}})


def report(tmp_path: Path, line: str, stage: str, *more: str) -> int:
    arguments = ["--stage", stage, "--line", line, "--run-id", RUN, "--executor-input", executor_input(tmp_path)]
    for name in ("uri", "metrics", "summary", "page", *(["classification"] if stage == "train" else [])):
        arguments += [f"--write-{name}", str(tmp_path / "out" / name)]
    return main(["report", *arguments, *more])


def reported(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The metadata of each artifact that a report has left."""
    found = json.loads((tmp_path / "out" / "executor_output.json").read_text())["artifacts"]
    return {name: entry["artifacts"][0]["metadata"] for name, entry in found.items()}


def begin(tmp_path: Path, line: str, config: str, *more: str) -> int:
    arguments = ["--line", line, "--run-id", RUN, "--config", config, "--created-at", "2026-11-22T06:00:07Z"]
    outputs = ["--write-run-id", str(tmp_path / "id"), "--write-data-date", str(tmp_path / "date")]
    return main(["begin", *arguments, *outputs, *more])


def test_a_run_begins_once(tmp_path: Path, line: str) -> None:
    config = publish_config(line)
    assert begin(tmp_path, line, config, "--scheduled-at", "2026-11-22T06:00:00Z") == 0
    assert (tmp_path / "id").read_text() == RUN
    assert (tmp_path / "date").read_text() == "2026-11-22T06:00:00+00:00"
    uri = storage.join(line, "runs", RUN, "run-start.json")
    first = storage.read_bytes(uri)
    start = json.loads(first)
    assert (start["id"], start["data_date"]) == (RUN, "2026-11-22T06:00:00+00:00")
    assert start["config"]["train"]["global_batch_size"] == 64
    assert begin(tmp_path, line, config) == 0
    assert storage.read_bytes(uri) == first


def test_a_run_begins_with_the_training_before_it(tmp_path: Path, line: str) -> None:
    """Found once: a training that ends meanwhile is not what the run's attempts start from."""
    config = publish_config(line, RunConfig.model_validate({"model": {"weights": "previous"}}))
    first = publish_output(line, "train")
    assert begin(tmp_path, line, config) == 0
    later = DOCUMENTS["train"].model_copy(update={"finished_at": "2026-12-01T00:00:00Z"})
    storage.replace(storage.join(line, "train", "f" * 16, MANIFEST_NAME), later.to_json())
    assert begin(tmp_path, line, config) == 0
    assert find_previous(line) == storage.join(line, "train", "f" * 16)
    assert read_previous(line, RUN) == first


def test_a_configuration_that_was_changed_begins_nothing(tmp_path: Path, line: str) -> None:
    config = publish_config(line)
    storage.replace(storage.join(line, "configs", "c.json"), b"{}")
    assert begin(tmp_path, line, config) == 2
    assert not storage.exists(storage.join(line, "runs", RUN, "run-start.json"))


@pytest.mark.parametrize(
    ("scheduled", "zone", "date"),
    [
        ("2026-10-26T06:00:00+01:00", "Etc/UTC", "2026-10-26T05:00:00+00:00"),
        ("", "Etc/UTC", "2026-11-22T06:00:07+00:00"),
        ("{{$.pipeline_job_schedule_time_utc}}", "Etc/UTC", "2026-11-22T06:00:07+00:00"),
        ("2026-11-22T06:00:00", "Etc/UTC", "2026-11-22T06:00:00+00:00"),
        # The day is that of the zone: a schedule of half past midnight is not of the day before.
        ("2026-07-01T22:30:00Z", "Europe/Berlin", "2026-07-02T00:30:00+02:00"),
        ("2026-01-01T02:00:00Z", "America/New_York", "2025-12-31T21:00:00-05:00"),
    ],
)
def test_the_data_is_of_the_moment_that_was_scheduled(scheduled: str, zone: str, date: str) -> None:
    assert data_date(scheduled, "2026-11-22T06:00:07Z", zone) == date
    dated = RunConfig.model_validate({"sharding": {"source": "gs://raw/{date}/x"}})
    assert with_data_date(dated, data_date(scheduled, "2026-11-22T06:00:07Z", zone)).sharding.source == (
        f"gs://raw/{date[:10]}/x"
    )


def test_a_run_is_of_the_day_of_its_schedules_zone(tmp_path: Path, line: str) -> None:
    config = publish_config(line, RunConfig.model_validate({"schedule": {"time_zone": "Asia/Tokyo"}}))
    assert begin(tmp_path, line, config, "--scheduled-at", "2026-11-22T16:00:00Z") == 0
    assert (tmp_path / "date").read_text() == "2026-11-23T01:00:00+09:00"
    nowhere = publish_config(line, RunConfig.model_validate({"schedule": {"time_zone": "Mars/Olympus"}}))
    assert begin(tmp_path, line, nowhere) == 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_reported_with_its_hashes(tmp_path: Path, line: str, stage: str) -> None:
    uri = publish_output(line, stage)
    result = leave_result(line, RUN, stage, uri, reused=True)
    assert report(tmp_path, line, stage) == 0
    assert (tmp_path / "out" / "uri").read_text() == uri
    summary = (tmp_path / "out" / "summary").read_text()
    assert summary.startswith(f"# {stage} (reused)") and uri in summary and result.manifest_sha256 in summary
    found = reported(tmp_path)
    assert set(found) == {"metrics", "summary", "page", *(["classification"] if stage == "train" else [])}
    for name in set(found) - {"metrics"}:
        assert found[name]["kept"] == "yes"
        assert (found[name]["uri"], found[name]["contract_uri"]) == (uri, f"{uri}/manifest.json")
        assert (found[name]["manifest_sha256"], found[name]["reused"]) == (result.manifest_sha256, "true")
        assert found[name]["display_name"].startswith(stage)
    numbers = found["metrics"]
    assert numbers.pop("kept") == "yes"
    check_numbers(stage, numbers)
    assert json.loads((tmp_path / "out" / "metrics").read_text()) == numbers
    expected = {
        "shard": ("shard_samples", 7),
        "profile": ("profile_slot_size", 16),
        "train": ("train_test_accuracy", 0.98765),
        "export": ("export_fp32_accuracy", 0.25),
    }
    name, value = expected[stage]
    assert numbers[name] == value


def test_a_profiles_report_tells_what_is_slow(tmp_path: Path, line: str) -> None:
    uri = publish_output(line, "profile")
    leave_result(line, RUN, "profile", uri, reused=False)
    assert report(tmp_path, line, "profile") == 0
    summary = (tmp_path / "out" / "summary").read_text()
    assert "- **R1, bad: steps wait for data**" in summary
    # A bar is a bar.
    assert "    - seen: data time 50 % &#124; limit 20 %" in summary and "raise data.num_workers to 4" in summary
    assert "- train.precision=bf16: x 1.30" in summary
    numbers = reported(tmp_path)["metrics"]
    names = ("profile_samples_per_s", "profile_data_time_fraction", "profile_findings")
    assert tuple(numbers[name] for name in names) == (123.45, 0.5, 1)


def test_what_was_not_measured_is_no_metric(tmp_path: Path, line: str) -> None:
    uri = storage.join(line, "profile", "0123456789abcdef")
    document = DOCUMENTS["profile"]
    assert isinstance(document, ProfileReport)
    points = [point.model_copy(update={"data_time_fraction": None}) for point in document.points]
    storage.replace(storage.join(uri, MANIFEST_NAME), document.model_copy(update={"points": points}).to_json())
    leave_result(line, RUN, "profile", uri, reused=False)
    assert report(tmp_path, line, "profile") == 0
    assert "data time not measured" in (tmp_path / "out" / "summary").read_text()
    assert "profile_data_time_fraction" not in reported(tmp_path)["metrics"]


def publish_training(line: str, evaluation: bytes | None) -> str:
    """Publish a training that says it has an evaluation, and the evaluation if there is one."""
    uri = storage.join(line, "train", "0123456789abcdef")
    document = trained_with_evaluation(evaluation or b"{}")
    storage.replace(storage.join(uri, MANIFEST_NAME), document.to_json())
    if evaluation is not None:
        storage.replace(storage.join(uri, EVALUATION_NAME), evaluation)
    leave_result(line, RUN, "train", uri, reused=False)
    return uri


def test_a_trainings_classes_are_told(tmp_path: Path, line: str) -> None:
    curve = RocCurve(area=1.0, points=[(0.5, 0, 3), (0.0, 3, 3)])
    publish_training(line, evaluation(["cat", "dog"], [(0, 0, 3), (1, 1, 3)], [curve, curve]))
    assert report(tmp_path, line, "train") == 0
    found = reported(tmp_path)["classification"]
    assert found["confusionMatrix"]["rows"] == [{"row": [3, 0]}, {"row": [0, 3]}]
    assert [point["recall"] for point in found["confidenceMetrics"]] == [0.0, 1.0, 1.0]
    assert found["made_from_shards"] == "s" and found["parameters_sha256"] == "ab"
    assert json.loads((tmp_path / "out" / "classification").read_text())["confusionMatrix"] == found["confusionMatrix"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no manifest.json"),
        (b'{"kind": "evaluation"', "is not JSON"),
        (b'{"kind": "evaluation", "format_version": 99}', "format version 99"),
    ],
)
def test_a_damaged_evaluation_is_said_and_fails_nothing(
    tmp_path: Path, line: str, content: bytes | None, words: str
) -> None:
    publish_training(line, content)
    assert report(tmp_path, line, "train") == 0
    found = reported(tmp_path)["classification"]
    assert words in found["note"] and "confusionMatrix" not in found
    assert words in (tmp_path / "out" / "summary").read_text()


def test_hostile_events_fail_no_report(tmp_path: Path, line: str) -> None:
    publish_training(line, None)
    folder = {"time": 1.0, "event": "folder", "fingerprint": "t"}
    write_attempt(line, "train", f"{RUN}.a", [folder, {"time": "x", "event": "spent"}, {"time": 2.0, "event": 7}])
    # Of a process that nobody has told of.
    write_attempt(line, "train", f"{RUN}.b", [folder, {"time": 2.0, "event": "spent", "life": "?", "step": "many"}])
    assert report(tmp_path, line, "train") == 0
    assert "where the time went cannot be shown" in (tmp_path / "out" / "summary").read_text()


@pytest.mark.parametrize("page", [RecursionError("deep <b>"), "x" * 1_100_000, "fine"])
def test_a_page_that_cannot_be_made_says_why(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch, page: Exception | str
) -> None:
    def render(view: object, stage: str) -> str:
        if isinstance(page, Exception):
            raise page
        return page

    monkeypatch.setattr("inspection.page.render_stage", render)
    leave_result(line, RUN, "shard", publish_output(line, "shard"), reused=False)
    assert begin(tmp_path, line, publish_config(line)) == 0
    assert report(tmp_path, line, "shard") == 0
    written = (tmp_path / "out" / "page").read_text()
    said = reported(tmp_path)["page"].get("said", "")
    if page == "fine":
        assert (written, said) == ("fine", "")
    elif isinstance(page, Exception):
        assert said == "the page cannot be shown: deep <b>"
        assert "deep &lt;b&gt;" in written and "default-src 'none'" in unescape(written)
    else:
        assert "1,100,000 bytes" in said and said in unescape(written)


def test_what_a_service_has_made_is_found_where_it_should_be(tmp_path: Path, line: str) -> None:
    uri = publish_output(line, "shard")
    assert report(tmp_path, line, "shard", "--at", uri) == 0
    found = find_result(line, RUN, "shard")
    assert found is not None and (found.uri, found.reused) == (uri, False)


def test_a_stage_without_an_output_says_why(tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path, line, "shard", "--at", storage.join(line, "shard", "f")) == 2
    assert "stage shard has left no output" in capsys.readouterr().err
    at = storage.join(line, "shard", "g")
    leave_refusal(at, DataError("12 of 72 files cannot be used", allowed="images", todo="look at them"))
    assert report(tmp_path, line, "shard", "--at", at) == 2
    assert "12 of 72 files cannot be used" in capsys.readouterr().err
    assert find_result(line, RUN, "shard") is None


def decide(tmp_path: Path, line: str, export: str, config: RunConfig = CONFIG, *more: str) -> int:
    outputs = [
        part for name in ("verdict", "artifact-uri", "image") for part in (f"--write-{name}", str(tmp_path / name))
    ]
    given = ["--line", line, "--run-id", RUN, "--export", export, "--config", publish_config(line, config)]
    return main(["gate", *given, *outputs, *more])


def publish_export(line: str, **changes: Any) -> str:
    uri = storage.join(line, "export", "0123456789abcdef")
    storage.replace(storage.join(uri, MANIFEST_NAME), make_served(uri, "sm80", **changes).to_json())
    return uri


def test_the_gate_lets_a_proven_export_through(tmp_path: Path, line: str) -> None:
    passed = Gate(name="engine sm80", precision="fp32", status="passed", ran="a GPU")
    uri = publish_export(line, gates=[passed], verdict="proven")
    assert decide(tmp_path, line, uri) == 0
    assert (tmp_path / "verdict").read_text() == "upload"
    assert (tmp_path / "artifact-uri").read_text() == f"{uri}/triton"
    newest = f"nvcr.io/nvidia/tritonserver:{max(RELEASES.values())}-py3"
    assert (tmp_path / "image").read_text() == newest
    assert decide(tmp_path, line, uri, CONFIG, "--serving-image", "eu.pkg.dev/p/r/triton@sha256:0") == 0
    assert (tmp_path / "image").read_text() == "eu.pkg.dev/p/r/triton@sha256:0"


def test_the_gate_refuses_what_is_unproven_unless_that_is_allowed(tmp_path: Path, line: str) -> None:
    uri = publish_export(line)
    assert decide(tmp_path, line, uri) == 0
    assert (tmp_path / "verdict").read_text() == "refuse"
    said = find_registration(line, RUN)
    assert said is not None and (said.verdict, said.unproven, said.upload) == ("refuse", ["sm80"], "")
    allowing = RunConfig.model_validate({"export": {"allow_unproven": True}})
    assert decide(tmp_path, line, uri, allowing) == 0
    assert (tmp_path / "verdict").read_text() == "upload"


def test_a_plan_that_no_known_triton_loads_needs_an_image(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = make_engine("sm80").model_copy(update={"builder": "tensorrt 11.9.0.1"})
    allowing = RunConfig.model_validate({"export": {"allow_unproven": True}})
    uri = publish_export(line, engines=[engine])
    assert decide(tmp_path, line, uri, allowing) == 2
    assert "no known Triton loads this" in capsys.readouterr().err
    assert decide(tmp_path, line, uri, allowing, "--serving-image", "eu.pkg.dev/p/r/triton@sha256:0") == 0


def test_the_gate_decides_nothing_about_a_changed_export(tmp_path: Path, line: str) -> None:
    uri = publish_export(line)
    changed = json.loads(storage.read_bytes(storage.join(uri, MANIFEST_NAME))) | {"verdict": "proven"}
    storage.replace(storage.join(uri, MANIFEST_NAME), json.dumps(changed).encode())
    allowing = RunConfig.model_validate({"export": {"allow_unproven": True}})
    assert decide(tmp_path, line, uri, allowing) == 2
    assert not (tmp_path / "verdict").exists()


@pytest.mark.parametrize(("verdict", "code"), [("refuse", 0), ("uplaod", 70), ("", 70), ("Upload", 70)])
def test_a_word_of_the_gate_that_nobody_knows_fails_the_run(verdict: str, code: int) -> None:
    assert main(["refused", "--verdict", verdict]) == code


def test_a_run_is_recorded_from_what_its_stages_left(tmp_path: Path, line: str) -> None:
    config = publish_config(line)
    assert begin(tmp_path, line, config) == 0
    for number, stage in enumerate(STAGES):
        uri, at = publish_output(line, stage), 1000.0 * (number + 1)
        leave_result(line, RUN, stage, uri, reused=False)
        # Preempted, and started again.
        write_attempt(line, stage, f"{RUN}.a", [{"time": at, "event": "start", "launched_at": at}])
        again = [
            {"time": at + 50, "event": "start", "launched_at": at + 50},
            {"time": at + 60, "event": "finish", "uri": uri, "made": f"made by {stage}"},
        ]
        write_attempt(line, stage, f"{RUN}.b", again)
        write_attempt(line, stage, "another-run.c", [{"time": 1.0, "event": "start", "launched_at": 1.0}])
    leave_registration(line, RUN, Registration(verdict="refuse", unproven=["sm80"]))
    arguments = ["record", "--line", line, "--run-id", RUN, "--config", config]
    assert main(arguments) == 0
    folder = storage.join(line, "runs", RUN)
    record = RunRecord.model_validate_json(storage.read_bytes(storage.join(folder, "run.json")))
    assert (record.id, record.state, record.error) == (RUN, "succeeded", "")
    assert [(stage.name, stage.state, stage.wall_s) for stage in record.stages] == [(s, "done", 60.0) for s in STAGES]
    assert record.results["parameters_sha256"] == "ab"
    assert storage.read_bytes(storage.join(line, "run.json")) == storage.read_bytes(storage.join(folder, "run.json"))
    assert b"made by train" in storage.read_bytes(storage.join(line, "report.md"))
    assert b'data-section="overview"' in storage.read_bytes(storage.join(folder, "report.html"))
    page = storage.join(folder, "profile.html")
    assert record.results["profile"]["page"] == page and b"<h1>Profiling run</h1>" in storage.read_bytes(page)
    # The task may be tried again.
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("registration", "words"),
    [
        (None, "the gate before the model registry did not decide"),
        (Registration(verdict="upload", unproven=[]), "the export was not uploaded"),
    ],
)
def test_a_run_whose_model_was_not_registered_has_failed(
    line: str, registration: Registration | None, words: str
) -> None:
    vertex = CONFIG.vertex.model_copy(update={"model": CONFIG.vertex.model.model_copy(update={"upload": True})})
    config = publish_config(line, CONFIG.model_copy(update={"vertex": vertex}))
    for stage in STAGES:
        leave_result(line, RUN, stage, publish_output(line, stage), reused=False)
    if registration is not None:
        leave_registration(line, RUN, registration)
    assert main(["record", "--line", line, "--run-id", RUN, "--config", config]) == 0
    record = RunRecord.model_validate_json(storage.read_bytes(storage.join(line, "runs", RUN, "run.json")))
    assert record.state == "failed" and words in record.error


def test_an_upload_is_recorded(line: str) -> None:
    config = publish_config(line)
    for stage in STAGES:
        leave_result(line, RUN, stage, publish_output(line, stage), reused=False)
    assert main(["registered", "--line", line, "--run-id", RUN, "--upload", "{}"]) == 2
    leave_registration(line, RUN, Registration(verdict="upload", unproven=[]))
    assert main(["registered", "--line", line, "--run-id", RUN, "--upload", '{"resources": []}']) == 0
    assert main(["record", "--line", line, "--run-id", RUN, "--config", config]) == 0
    record = RunRecord.model_validate_json(storage.read_bytes(storage.join(line, "runs", RUN, "run.json")))
    assert record.state == "succeeded"
    assert record.results["register"] == {"verdict": "upload", "unproven": [], "upload": '{"resources": []}'}


def test_a_failed_run_is_recorded_with_the_stages_own_words(tmp_path: Path, line: str) -> None:
    config = publish_config(line)
    leave_result(line, RUN, "shard", publish_output(line, "shard"), reused=False)
    error = {"kind": "ConfigError", "exit_code": 2, "message": "train.epochs = -1", "traceback": ""}
    write_attempt(line, "profile", f"{RUN}.a", [{"time": 5.0, "event": "start", "launched_at": 5.0}])
    uri = storage.join(line, "profile", "attempts", f"{RUN}.a", "error.json")
    storage.replace(uri, json.dumps(error).encode())
    assert main(["record", "--line", line, "--run-id", RUN, "--config", config]) == 0
    record = RunRecord.model_validate_json(storage.read_bytes(storage.join(line, "runs", RUN, "run.json")))
    assert (record.state, record.error) == ("failed", "stage profile: train.epochs = -1")
    assert [stage.state for stage in record.stages] == ["done", "failed", "not started", "not started"]


def test_a_bucket_that_fails_once_fails_the_record(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is written once: times that could not be read would stay unknown."""
    folder = storage.join(line, "train", "attempts", "r9")
    storage.replace(storage.join(folder, "events.jsonl"), b'{"time": 5.0, "event": "start", "launched_at": 5.0}\n')
    assert read_trace(line, "train", "r9").launched_at == 5.0
    given = storage.read_range

    def fails(uri: str, *where: int) -> bytes:
        if uri.endswith("events.jsonl"):
            raise StorageError("no answer", allowed="a bucket that answers", todo="try again")
        return given(uri, *where)

    monkeypatch.setattr(storage, "read_range", fails)
    with pytest.raises(StorageError, match="no answer"):
        read_trace(line, "train", "r9")


def test_a_small_tasks_error_is_left_for_who_asks_why(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, line, "train") == 2
    (task,) = find_errors(line, RUN)
    assert task == "report-train"
    document = find_errors(line, RUN)[task]
    assert (document.exit_code, document.kind) == (2, "DataError") and document.message in capsys.readouterr().err
    uri = publish_output(line, "train")
    leave_result(line, RUN, "train", uri, reused=False)
    assert report(tmp_path, line, "train") == 0
    assert find_errors(line, RUN) == {}


def test_a_bucket_that_is_gone_does_not_change_how_a_task_ends(
    tmp_path: Path, bucket_server: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, "gs://bucket-gone/line", "shard") == 2
    said = capsys.readouterr().err
    assert "how it ended could not be written down" in said and "report: error: " in said
