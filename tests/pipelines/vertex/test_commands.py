"""The commands themselves, on the pipeline that `compile` makes."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

import pipelines.compile
import pipelines.runs.cancel
import pipelines.runs.regions
import pipelines.submission.launch
from contracts.canonical import canonical_hash
from contracts.config import RunConfig
from pipelines.cli import app
from pipelines.compile import CompiledLine, compile_line
from pipelines.plan import Plan
from pipelines.submission.submit import to_dict
from tests.pipelines.vertex.conftest import NUMBER, PROJECT, REGION, STOCKOUT, Cloud

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
        "images": {
            name: f"us-docker.pkg.dev/p/r/{name}{DIGEST}" for name in ("pipeline", "trainer", "export", "serving")
        },
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
    """Looks follow each other at once, and a configuration is compiled once: the commands here compile it for ever."""

    def compile_once(config: RunConfig, plan: Plan) -> CompiledLine:
        key = config.model_dump_json() + str(plan.price_usd_per_h)
        if key not in COMPILED:
            COMPILED[key] = compile_line(config, plan)
        return COMPILED[key]

    for user in (pipelines.compile, pipelines.submission.launch):
        monkeypatch.setattr(user, "compile_line", compile_once)
    monkeypatch.setattr(pipelines.runs.regions.follow_regions, "__kwdefaults__", {"poll_s": 0.05})
    defaults = pipelines.runs.cancel.cancel.__kwdefaults__ or {}
    monkeypatch.setattr(pipelines.runs.cancel.cancel, "__kwdefaults__", {**defaults, "poll_s": 0.05})


def shardline(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_compile_dry_run_and_the_service_have_the_same_hash(cloud: Cloud, config: str, tmp_path: Path) -> None:
    compiled = shardline("compile", config, "--to", str(tmp_path / "line.pipeline.yaml"))
    printed = json.loads(shardline("submit", config, "--dry-run", "--run-id", "hash-1").stdout)
    name = shardline("submit", config, "--run-id", "hash-1").stdout.strip()
    assert name == f"projects/{PROJECT}/locations/{REGION}/pipelineJobs/hash-1"
    received = cloud.store.get(name.replace(PROJECT, NUMBER))
    found = canonical_hash(to_dict(received)["pipelineSpec"])
    assert compiled.stdout.split()[-1] == f"sha256:{found}"
    assert printed["pipelineSpecSha256"] == found
    assert canonical_hash(to_dict(received)["runtimeConfig"]) == canonical_hash(printed["pipelineJob"]["runtimeConfig"])


def test_a_dry_run_asks_nobody(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    shardline("submit", config, "--dry-run")
    shardline("schedule", "create", config, "--dry-run")


def test_submit_without_wait(cloud: Cloud, config: str) -> None:
    first = shardline("submit", config, "--run-id", "once-1")
    assert "run once-1 submitted" in first.stderr
    assert "only `submit --wait` tries us-east4" in first.stderr
    again = shardline("submit", config, "--run-id", "once-1")
    assert "run once-1 exists" in again.stderr
    other = shardline("submit", config, "train.learning_rate=0.5", "--run-id", "once-1", code=2)
    assert "run once-1 exists, and differs" in other.stderr


def test_wait_status_logs_and_cancel(cloud: Cloud, config: str) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = STOCKOUT
    waited = shardline("submit", config, "--wait", "--run-id", "wait-1")
    assert waited.stdout.split() == [
        f"projects/{PROJECT}/locations/{REGION}/pipelineJobs/wait-1",
        f"projects/{PROJECT}/locations/us-east4/pipelineJobs/wait-1",
    ]
    failed = shardline("status", "wait-1", "--config", config)
    assert "likely cause: the region has no such machines left now (stockout)" in failed.stdout
    assert json.loads(shardline("status", waited.stdout.split()[1], "-o", "json").stdout)["state"] == "SUCCEEDED"
    assert "there is no run nobody" in shardline("status", "nobody", "--config", config, code=2).stderr
    ended = shardline("cancel", "wait-1", "--config", config)
    assert f"run wait-1 in {REGION} had ended before: failed" in ended.stdout
    assert "run wait-1 in us-east4 had ended before: succeeded" in ended.stdout
    assert "nothing of it runs any more (2 jobs)" in ended.stdout
    assert "run wait-1: succeeded" in failed.stdout
    both = json.loads(shardline("status", "wait-1", "--config", config, "-o", "json").stdout)
    assert (both["state"], [earlier["state"] for earlier in both["earlier"]]) == ("SUCCEEDED", ["FAILED"])
    assert "run wait-1 in us-east4" in shardline("logs", "wait-1", "--config", config).stderr

    cloud.pipelines.script.outcomes["us-central1"] = "running"
    shardline("submit", config, "--run-id", "wait-2")
    cancelled = shardline("cancel", "wait-2", "--config", config)
    assert f"run wait-2 in {REGION} ended: cancelled" in cancelled.stdout
    assert "nothing of it runs any more (1 jobs)" in cancelled.stdout
    for run_id in ("wait-1", "wait-2"):
        again = shardline("submit", config, "--run-id", run_id, code=75)
        assert "take another --run-id" in again.stderr


def test_a_stockout_everywhere_ends_with_75_and_what_to_do(cloud: Cloud, config: str) -> None:
    cloud.pipelines.script.outcomes |= {"us-central1": STOCKOUT, "us-east4": STOCKOUT}
    failed = shardline("submit", config, "--wait", "--run-id", "nowhere-1", code=75)
    assert "to do: try another region" in failed.stderr


def test_what_cannot_work_ends_with_2_and_creates_nothing(
    cloud: Cloud, config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = len(cloud.pipelines.started)
    for override, said in (
        ("cloud.project=nobody-1", "no such project"),
        ("run.root=gs://bucket-gone/r", "no such bucket"),
    ):
        failed = shardline("submit", config, override, code=2)
        assert said in failed.stderr and "to do:" in failed.stderr
    for arguments in (["--run-id", "No"], ["resources.regions=[mars]"]):
        assert "to do:" in shardline("submit", config, *arguments, code=2).stderr
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in (["submit", config], ["status", "x", "--config", config], ["schedule", "list", config]):
        assert "gcloud auth application-default login" in shardline(*command, code=2).stderr
    assert len(cloud.pipelines.started) == before


def test_the_schedule_of_a_line(cloud: Cloud, config: str) -> None:
    shardline("schedule", "pause", config, code=2)
    printed = json.loads(shardline("schedule", "create", config, "--dry-run").stdout)
    assert printed["schedule"]["maxConcurrentActiveRunCount"] == 1
    shardline("schedule", "create", config)
    assert "delete it first" in shardline("schedule", "create", config, code=2).stderr
    assert "paused" in shardline("schedule", "pause", config).stdout
    assert "paused" in shardline("schedule", "list", config).stdout
    assert "active" in shardline("schedule", "resume", config).stdout
    shardline("schedule", "delete", config)
    shardline("schedule", "delete", config, code=2)


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_alone_and_says_how_to_go_on(cloud: Cloud, config: str) -> None:
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    command = [sys.executable, "-W", "ignore", "-m", "pipelines.cli", "submit", config, "--wait", "--run-id", "left-1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "custom-training-job: running" in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130, "".join(said) + rest
    assert "run left-1 goes on" in rest and "shardline cancel left-1" in rest
    found = json.loads(shardline("status", "left-1", "--config", config, "-o", "json").stdout)
    assert found["state"] == "RUNNING"
    shardline("cancel", "left-1", "--config", config)
