"""The commands themselves, on the pipeline that `compile` makes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import aiplatform
from typer.testing import CliRunner, Result

import pipelines.follow
import pipelines.plan
import pipelines.submit
from components.gate import PRODUCTION_NAME, Production
from contracts import storage
from contracts.canonical import canonical_hash
from contracts.checked import Findings
from contracts.config import RunConfig
from pipelines.cli import app
from pipelines.compile import CompiledLine, compile_line
from pipelines.plan import Plan
from pipelines.submit import state_of, to_dict
from rehearsal.clock import Clock
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, STOCKOUT, Cloud, wait_for

COMPILED: dict[str, CompiledLine] = {}
DIGEST = "@sha256:" + 32 * "12"
CONFIG: dict[str, Any] = {
    "run": {"name": "line", "root": "gs://bucket-1/runs"},
    "sharding": {"source": "gs://bucket-1/raw"},
    "resources": {
        "machine": {"type": "g2-standard-12"},
        "regions": ["us-east4"],
    },
    "cloud": {
        "project": PROJECT,
        "region": REGION,
        "service_account": f"runner@{PROJECT}.iam.gserviceaccount.com",
        "images": {name: f"us-docker.pkg.dev/p/r/{name}{DIGEST}" for name in ("cpu", "gpu", "serving")},
    },
    "schedule": {"cron": "0 6 * * 1", "time_zone": "Europe/Berlin"},
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "line.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return str(path)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once, a configuration is compiled once, and the stages check nothing."""

    def compile_once(config: RunConfig, plan: Plan) -> CompiledLine:
        key = config.model_dump_json() + str(plan.cost.price_usd_per_h)
        if key not in COMPILED:
            COMPILED[key] = compile_line(config, plan)
        return COMPILED[key]

    monkeypatch.setattr(pipelines.plan, "check_planned", lambda *_, **__: Findings())
    monkeypatch.setattr(pipelines.submit, "compile_line", compile_once)
    for function in (pipelines.follow.submit_and_wait, pipelines.follow.cancel):
        monkeypatch.setattr(function, "__kwdefaults__", {**(function.__kwdefaults__ or {}), "poll_s": 0.05})


def shardline(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_compile_dry_run_and_the_service_have_the_same_hash(cloud: Cloud, config: str, tmp_path: Path) -> None:
    compiled = shardline("compile", config, "--to", str(tmp_path / "line.pipeline.yaml"))
    printed = json.loads(shardline("submit", config, "--dry-run", "--run-id", "hash-1").stdout)
    name = shardline("submit", config, "--run-id", "hash-1").stdout.strip()
    assert name == f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/hash-1"
    received = cloud.store.get(name)
    found = canonical_hash(to_dict(received)["pipelineSpec"])
    assert compiled.stdout.split()[-1] == f"sha256:{found}"
    assert printed["pipelineSpecSha256"] == found
    assert canonical_hash(to_dict(received)["runtimeConfig"]) == canonical_hash(printed["pipelineJob"]["runtimeConfig"])


def test_a_dry_run_asks_nobody(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    shardline("submit", config, "--dry-run")
    shardline("schedule", "create", config, "--dry-run")


def test_wait_status_logs_and_cancel(cloud: Cloud, config: str) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = STOCKOUT
    waited = shardline("submit", config, "--wait", "--run-id", "wait-1")
    assert waited.stdout.split() == [
        f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/wait-1",
        f"projects/{NUMBER}/locations/us-east4/pipelineJobs/wait-1",
    ]
    both = shardline("status", "wait-1", "--config", config).stdout
    assert "likely cause: the region has no such machines left now (stockout)" in both
    assert "run wait-1: succeeded" in both
    assert json.loads(shardline("status", waited.stdout.split()[1], "-o", "json").stdout)["state"] == "succeeded"
    assert "there is no run nobody" in shardline("status", "nobody", "--config", config, code=2).stderr
    found = json.loads(shardline("status", "wait-1", "--config", config, "-o", "json").stdout)
    assert (found["state"], [earlier["state"] for earlier in found["earlier"]]) == ("succeeded", ["failed"])
    assert "run wait-1 in us-east4" in shardline("logs", "wait-1", "--config", config).stderr
    ended = shardline("cancel", "wait-1", "--config", config).stdout.splitlines()
    assert ended == [
        f"run wait-1 in {REGION}: failed; none of its 1 jobs runs any more",
        "run wait-1 in us-east4: succeeded; none of its 1 jobs runs any more",
    ]
    again = shardline("submit", config, "--run-id", "wait-1", code=2)
    assert "use another --run-id" in again.stderr


def test_what_cannot_work_ends_with_2_and_creates_nothing(
    cloud: Cloud, config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = len(cloud.pipelines.started)
    for override, expected in (
        ("cloud.project=nobody-1", "correct cloud.project"),
        ("run.root=gs://bucket-gone/r", "no such bucket"),
    ):
        failed = shardline("submit", config, override, code=2)
        assert expected in failed.stderr and "to do:" in failed.stderr
    values = {"line": "other", "task": "image_classification", "run": "r", "since": "", "why": "", "fingerprint": "f"}
    other = Production.model_validate({**values, "made_from": {}})
    storage.publish(f"gs://bucket-1/runs/line/{PRODUCTION_NAME}", other.to_json())
    assert "is of line other" in shardline("submit", config, "register.upload=true", code=2).stderr
    for arguments in (["--run-id", "No"], ["resources.regions=[mars]"]):
        assert "to do:" in shardline("submit", config, *arguments, code=2).stderr
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    # The SDK keeps what it found first.
    monkeypatch.setattr(aiplatform.initializer.global_config, "_credentials", None)
    for command in (["submit", config], ["status", "x", "--config", config], ["schedule", "list", config]):
        assert "gcloud auth application-default login" in shardline(*command, code=2).stderr
    assert len(cloud.pipelines.started) == before


def test_the_schedule_of_a_line(cloud: Cloud, config: str) -> None:
    assert "0 schedules" in shardline("schedule", "pause", config, code=2).stderr
    printed = json.loads(shardline("schedule", "create", config, "--dry-run").stdout)["schedule"]
    assert (printed["maxConcurrentRunCount"], printed["maxConcurrentActiveRunCount"]) == ("1", "1")
    assert printed["cron"] == "TZ=Europe/Berlin 0 6 * * 1"
    made = shardline("schedule", "create", config).stdout
    assert "  line  active  TZ=Europe/Berlin 0 6 * * 1  next 20" in made
    (stored,) = [one for one in cloud.store.list("projects/") if type(one).__name__ == "Schedule"]
    # What the service holds is what was printed; it adds times, names and states.
    received = to_dict(stored)
    assert {name: received[name] for name in printed} == printed
    assert "delete it first" in shardline("schedule", "create", config, code=2).stderr
    for _ in range(2):
        assert "paused" in shardline("schedule", "pause", config).stdout
    assert "paused" in shardline("schedule", "list", config).stdout
    for _ in range(2):
        assert "active" in shardline("schedule", "resume", config).stdout
    assert "allowed: one of the line line" in shardline("schedule", "delete", config, "--id", "7", code=2).stderr
    shardline("schedule", "delete", config, "--id", str(stored.name).rpartition("/")[2])
    shardline("schedule", "delete", config, code=2)


def test_a_schedule_fires_at_its_times_with_one_active_run_at_most(
    cloud: Cloud, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A Sunday in autumn: summer time ends between the first two firings.
    clock, week_s, fired = Clock(datetime(2026, 10, 18, 12, tzinfo=UTC).timestamp(), rate=0), 7 * 86400.0, []
    monkeypatch.setattr(cloud.server.state, "clock", clock)
    printed = json.loads(shardline("schedule", "create", config, "--dry-run").stdout)["schedule"]
    shardline("schedule", "create", config)

    def schedule() -> Any:
        (found,) = aiplatform.PipelineJobSchedule.list(filter='display_name="line"', project=PROJECT, location=REGION)
        return found

    def runs() -> list[Any]:
        found: list[Any] = schedule().list_jobs(order_by="create_time", enable_simple_view=False)
        return found

    def states() -> list[str]:
        return [state_of(job) for job in runs()]

    def fire() -> str:
        """Let a week pass; return what the service says of the firing."""
        clock.advance(week_s)
        wait_for(lambda: schedule().gca_resource.next_run_time.timestamp() > clock.now())
        last = schedule().gca_resource.last_scheduled_run_response
        fired.append(last.scheduled_run_time.isoformat(timespec="minutes"))
        return str(last.run_response)

    # A training of more than a week.
    cloud.pipelines.script.outcomes[REGION] = "running"
    assert fire() == "OK"
    wait_for(lambda: states() == ["running"])
    assert fire().startswith("Skipped: 1 of 1 runs are active") and states() == ["running"]
    shardline("cancel", runs()[0].name, "--config", config)
    cloud.pipelines.script.outcomes.clear()
    assert fire() == "OK"
    wait_for(lambda: states() == ["cancelled", "succeeded"])
    # Six in the morning in Berlin: four in summer, five in winter.
    assert fired == ["2026-10-19T04:00+00:00", "2026-10-26T05:00+00:00", "2026-11-02T05:00+00:00"]
    for job in runs():
        received = to_dict(job.gca_resource)["runtimeConfig"]["parameterValues"]
        assert received == printed["createPipelineJobRequest"]["pipelineJob"]["runtimeConfig"]["parameterValues"]
    # What a pause has missed is not made up for.
    shardline("schedule", "pause", config)
    clock.advance(2 * week_s)
    shardline("schedule", "resume", config)
    assert fire() == "OK" and len(states()) == 3
    shardline("schedule", "delete", config)
