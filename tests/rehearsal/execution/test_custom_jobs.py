"""Custom jobs as processes: what machines are told, restarts, preemptions, stockouts, the end of everything."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from google.cloud import aiplatform_v1

from rehearsal.jobs import custom_jobs, gang
from rehearsal.jobs.custom_jobs import CustomJobRuns
from rehearsal.jobs.market import Market, Preemption, spread
from rehearsal.machines.machine import Scale
from rehearsal.machines.processes import MARK_VARIABLE
from rehearsal.resources.store import Store
from tests.rehearsal.execution.world import LIMIT_S, Clock, Logs

PARENT = "projects/123456789012/locations/europe-west4"
IMAGE = "europe-west4-docker.pkg.dev/acme/images/trainer@sha256:" + "0" * 64
# Writes what it finds to a file of its own, and waits until it is told to go on.
TELL = """
import json, os, sys, time
folder = sys.argv[1]
names = ["CLUSTER_SPEC", "CLOUD_ML_JOB_ID", "HOME", "TMPDIR", "OMP_NUM_THREADS", "AIP_MODEL_DIR", "EXTRA", "GIVEN"]
names += [name for name in os.environ if name.startswith("SHARDLINE_")]
found = {name: os.environ.get(name) for name in names}
found |= {"TMPDIR": os.path.realpath(found["TMPDIR"]), "socket": os.path.join(found["TMPDIR"], "pymp-12345678/x" * 2)}
found |= {"cwd": os.getcwd(), "python": sys.executable, "args": sys.argv}
task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
with open(f"{folder}/{task['type']}-{task['index']}.json", "w") as stream:
    json.dump(found, stream)
if task["type"] != "workerpool0":
    time.sleep(600)
while len(os.listdir(folder)) < 2:
    time.sleep(0.05)
"""
# Counts its starts beside (they outlive the machine) and on its disk; ends with a code that depends on the first count.
COUNT = """
import os, sys, time
beside, codes = sys.argv[1], sys.argv[2].split(",")
for path in (beside, os.path.join(os.environ["HOME"], "starts")):
    with open(path, "a") as stream:
        stream.write("x")
print("starts on this disk:", os.path.getsize(os.path.join(os.environ["HOME"], "starts")), flush=True)
sys.exit(int(codes[min(os.path.getsize(beside), len(codes)) - 1]))
"""
# A training that is not one: steps to its events, as trainer.task leaves them, and leaves when it is told to. It begins
# when all machines have, and waits where it is told to until the test has made a file.
TRAIN = """
import json, os, signal, sys, time
goal, beside, waits, deaf = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), "deaf" in sys.argv
folder = os.path.join(os.environ["TMPDIR"], "shardline-x")
os.makedirs(folder, exist_ok=True)
step = os.path.getsize(beside) if os.path.exists(beside) else 0
def leave(*_):
    print("told to stop", flush=True)
    if not deaf:
        sys.exit(75)
signal.signal(signal.SIGTERM, leave)
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
spec = json.loads(os.environ["CLUSTER_SPEC"])
# Another at each start of all machines.
up = beside + ".up-" + os.environ["SHARDLINE_REHEARSAL_PORT"]
if spec["task"]["type"] != "workerpool0":
    open(up, "w").close()
    time.sleep(600)
if "workerpool1" in spec["cluster"]:
    wait_for(up)
while step < goal:
    step += 1
    with open(beside, "a") as stream:
        stream.write("x")
    with open(os.path.join(folder, "events.jsonl"), "a") as stream:
        stream.write(json.dumps({"event": "progress", "unit": "steps", "done": step, "total": goal}) + "\\n")
    if str(step) in waits:
        wait_for(f"{beside}.go-{step}")
    time.sleep(0.001)
"""


class Jobs:
    """Submits custom jobs to CustomJobRuns without a server between."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.store, self.logs, self.folder = Store(), Logs(), folder
        self.runs = CustomJobRuns(self.store, folder=folder, logs=self.logs, clock=Clock(), **options)

    def submit(self, code: str, *args: str, nodes: int = 1, **scheduling: Any) -> str:
        """Add a job of so many machines and start it; return its name."""
        base = scheduling.pop("base", "")
        image = scheduling.pop("image", IMAGE)
        pool = {
            "machine_spec": {"machine_type": "g2-standard-12"},
            "container_spec": {
                "image_uri": image,
                "command": ["python3", "-c", code],
                "args": list(args),
                "env": [{"name": "GIVEN", "value": 'a "python3" \n'}],
            },
        }
        pools = [{**pool, "replica_count": count} for count in (1, nodes - 1) if count]
        spec = {"worker_pool_specs": pools, "scheduling": scheduling}
        if base:
            spec["base_output_directory"] = {"output_uri_prefix": base}
        job = aiplatform_v1.CustomJob(
            name=f"{PARENT}/customJobs/{self.store.new_id()}",
            display_name="train-digits",
            job_spec=spec,
            state=aiplatform_v1.JobState.JOB_STATE_PENDING,
        )
        self.store.add(job.name, job)
        self.runs.start(job.name)
        return str(job.name)

    def run(self, code: str, *args: str, **options: Any) -> Any:
        """Submit, wait for the end, and return the job."""
        job = self.runs.wait(self.submit(code, *args, **options), LIMIT_S)
        assert job.end_time, self.logs.entries
        return job


@pytest.fixture
def make_jobs(tmp_path: Path) -> Iterator[Callable[..., Jobs]]:
    """Make executors of custom jobs; they end with the test."""
    made: list[Jobs] = []

    def make(folder: str = "jobs", **options: Any) -> Jobs:
        made.append(Jobs(tmp_path / folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.runs.close()


@pytest.fixture
def jobs(make_jobs: Callable[..., Jobs]) -> Jobs:
    return make_jobs(scale=Scale(processes_per_node=2, time_scale=0.1, extra={"EXTRA": "more"}))


def wait_for_preemptions(market: Market, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(market.preempted) < count:
        assert time.monotonic() < deadline, market.preempted
        time.sleep(0.02)


def test_what_machines_are_told(jobs: Jobs, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.mkdir()
    job = jobs.run(TELL, str(said), nodes=2, base="gs://line/out")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert job.start_time <= job.end_time
    first, second = (json.loads((said / f"workerpool{pool}-0.json").read_text()) for pool in (0, 1))
    cluster = json.loads(first["CLUSTER_SPEC"])["cluster"]
    assert [len(cluster[name]) for name in ("workerpool0", "workerpool1")] == [1, 1]
    assert cluster == json.loads(second["CLUSTER_SPEC"])["cluster"]
    assert first["CLOUD_ML_JOB_ID"] == second["CLOUD_ML_JOB_ID"] == job.name.rpartition("/")[2]
    for name in ("HOME", "TMPDIR", "SHARDLINE_REHEARSAL_MEMORY", "cwd"):
        assert first[name] != second[name]
        assert first[name].startswith(str(tmp_path / "jobs"))
    assert len(first["socket"]) < 100
    assert int(first["OMP_NUM_THREADS"]) >= 1
    assert first["AIP_MODEL_DIR"] == "gs://line/out/model/"
    assert (first["EXTRA"], first["GIVEN"]) == ("more", 'a "python3" \n')
    # A report can tell of every variable that is no Vertex's.
    ours = {name for name in first if name.startswith("SHARDLINE_")} - {MARK_VARIABLE}
    assert ours <= set(jobs.runs.scale.variables)
    assert Path(first["python"]).samefile(sys.executable)
    assert first["args"] == ["-c", str(said)]
    assert not list((tmp_path / "jobs").rglob("disk-*"))


def test_a_failure_is_started_again_in_place(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.run(COUNT, str(tmp_path / "starts"), "1,1,0")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert jobs.logs.texts(task_name="workerpool0-0")[-1] == "starts on this disk: 3"


def test_restarts_have_an_end(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "MAX_RESTARTS", 1)
    monkeypatch.setattr(gang, "MAX_RETRIES", 1)
    job = jobs.run(COUNT, str(tmp_path / "starts"), "7")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    # Twice on the first machine, twice on the second.
    assert (tmp_path / "starts").read_text() == "xxxx"
    texts = jobs.logs.texts(task_name="workerpool0-0")
    assert [text[-1] for text in texts if text.startswith("starts")] == ["1", "2", "1", "2"]
    assert job.error.code == 3
    assert "workerpool0-0 exited with a non-zero status of 7" in job.error.message


def test_retries_can_be_disabled(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.run(COUNT, str(tmp_path / "starts"), "2", disable_retries=True)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    assert (tmp_path / "starts").read_text() == "x"


@pytest.mark.parametrize("kind", ["sigterm", "sigkill"])
def test_a_preempted_gang_starts_again_on_new_machines(
    make_jobs: Callable[..., Jobs], tmp_path: Path, kind: Literal["sigterm", "sigkill"]
) -> None:
    market = Market(preemptions=[Preemption(1, kind, at_step=20), Preemption(0, kind, at_fraction=0.5)])
    jobs, steps = make_jobs(market=market), tmp_path / "steps"
    name = jobs.submit(TRAIN, "100", str(steps), "20,50", nodes=2, strategy="SPOT", restart_job_on_worker_restart=True)
    for count, step in ((1, 20), (2, 50)):
        wait_for_preemptions(market, count)
        (tmp_path / f"steps.go-{step}").touch()
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert market.missing == 0
    first, second = market.preempted
    assert (first.node, second.node) == (1, 0)
    assert (first.step, second.step) == (20, 50)
    assert (first.attempt, second.attempt) == (1, 2)
    code = 75 if kind == "sigterm" else -signal.SIGKILL
    assert [(one.exit_code, one.escalated) for one in (first, second)] == [(code, False)] * 2
    told = jobs.logs.texts(task_name="workerpool0-0").count("told to stop")
    # Those that remain are told in any case; the one that is killed at once is not.
    assert told == (2 if kind == "sigterm" else 1)


def test_who_does_not_heed_the_notice_is_killed(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(preemptions=[Preemption(0, "sigterm", at_step=1)])
    jobs = make_jobs(market=market, scale=Scale(time_scale=0.01))
    name = jobs.submit(TRAIN, "3", str(tmp_path / "steps"), "1", "deaf", strategy="SPOT")
    wait_for_preemptions(market, 1)
    (tmp_path / "steps.go-1").touch()
    assert jobs.runs.wait(name, LIMIT_S).state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    (gone,) = market.preempted
    assert (gone.exit_code, gone.escalated) == (-signal.SIGKILL, True)


def test_only_spot_machines_are_taken_away(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(preemptions=[Preemption(0, "sigkill", at_step=1)], rate=1e9)
    jobs = make_jobs(market=market)
    jobs.run(TRAIN, "5", str(tmp_path / "steps"), "", strategy="STANDARD")
    assert not market.preempted
    assert market.missing == 1


def test_preemptions_have_an_end(
    make_jobs: Callable[..., Jobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "MAX_PREEMPTIONS", 1)
    market = Market(preemptions=[Preemption(0, "sigkill", at_step=step) for step in (1, 2, 3)])
    jobs = make_jobs(market=market)
    job = jobs.run(TRAIN, "10", str(tmp_path / "steps"), "1,2,3", strategy="SPOT", restart_job_on_worker_restart=True)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    assert "STOCKOUT" in job.error.message
    assert len(market.preempted) == 2


def test_cancel_and_close_end_all(jobs: Jobs, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.mkdir()
    (said / "more").mkdir()
    name = jobs.submit("import time; time.sleep(600)", nodes=2)
    jobs.store.wait(name, lambda job: job.state == aiplatform_v1.JobState.JOB_STATE_RUNNING, LIMIT_S)
    jobs.runs.cancel(name)
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_CANCELLED


def test_stockouts(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    place = ("europe-west4", "g2-standard-12", "SPOT")
    jobs = make_jobs(market=Market(stockouts={place: 1}, stockout="fail"))
    job = jobs.run(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT")
    assert job.state == aiplatform_v1.JobState.JOB_STATE_FAILED
    assert job.error.code == 8
    assert "insufficient" in job.error.message
    # The next one finds machines, and so does another strategy.
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT").state.name == "JOB_STATE_SUCCEEDED"


def test_a_job_that_waits_for_machines_never_runs(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    asked = threading.Event()

    class Told(Market):
        def take_stockout(self, region: str, machine: str, strategy: str) -> bool:
            try:
                return super().take_stockout(region, machine, strategy)
            finally:
                asked.set()

    jobs = make_jobs(market=Told(stockouts={("europe-west4", "g2-standard-12", "SPOT"): 1}))
    name = jobs.submit(COUNT, str(tmp_path / "starts"), "0", strategy="SPOT")
    assert asked.wait(LIMIT_S)
    jobs.runs.cancel(name)
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert not job.start_time
    assert not (tmp_path / "starts").exists()


def test_a_fault_of_ours_fails_the_job_and_nothing_begins_after_the_end(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_jobs, "Gang", None)
    job = jobs.run(COUNT, str(tmp_path / "starts"), "0")
    assert (job.state, job.error.code) == (aiplatform_v1.JobState.JOB_STATE_FAILED, 13)
    assert len(jobs.runs.failures) == 1 and "NoneType" in jobs.runs.failures[0]
    monkeypatch.undo()
    jobs.runs.close()
    assert jobs.run(COUNT, str(tmp_path / "starts"), "0").state == aiplatform_v1.JobState.JOB_STATE_CANCELLED
    assert not (tmp_path / "starts").exists()


def test_an_image_that_is_not_there_and_a_command_that_is_not(make_jobs: Callable[..., Jobs]) -> None:
    jobs = make_jobs(missing_images=frozenset({IMAGE}))
    assert IMAGE in jobs.run(COUNT, "x", "0").error.message
    name = f"{PARENT}/customJobs/1"
    pool = {"replica_count": 1, "container_spec": {"image_uri": "image", "args": ["x"]}}
    jobs.store.add(name, aiplatform_v1.CustomJob(name=name, job_spec={"worker_pool_specs": [pool]}))
    jobs.runs.start(name)
    assert "entry point" in jobs.runs.wait(name, LIMIT_S).error.message


def test_without_restarts_of_all_one_machine_is_replaced(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(preemptions=[Preemption(1, "sigkill", at_step=20)])
    jobs = make_jobs(market=market)
    name = jobs.submit(TRAIN, "100", str(tmp_path / "steps"), "20", nodes=2, strategy="SPOT")
    wait_for_preemptions(market, 1)
    (tmp_path / "steps.go-20").touch()
    job = jobs.runs.wait(name, LIMIT_S)
    assert job.state == aiplatform_v1.JobState.JOB_STATE_SUCCEEDED
    assert [one.node for one in market.preempted] == [1]
    # The first machine was let alone: it counted through.
    assert (tmp_path / "steps").stat().st_size == 100
    assert "told to stop" not in jobs.logs.texts(task_name="workerpool0-0")


def test_a_job_has_a_timeout_and_flex_start_a_limit(make_jobs: Callable[..., Jobs]) -> None:
    place = ("europe-west4", "g2-standard-12", "FLEX_START")
    jobs = make_jobs(market=Market(stockouts={place: 1}), scale=Scale(time_scale=0.1))
    job = jobs.run("import time; time.sleep(600)", timeout={"seconds": 1})
    assert job.error.code == 4
    assert "timeout of 1 s" in job.error.message
    job = jobs.run(COUNT, "x", "0", strategy="FLEX_START", max_wait_duration={"seconds": 2})
    assert job.error.code == 8
    assert not job.start_time


def test_a_rate_takes_machines_again_and_again(make_jobs: Callable[..., Jobs], tmp_path: Path) -> None:
    market = Market(seed=1, rate=1e9)
    jobs = make_jobs(market=market)
    job = jobs.run(TRAIN, "1000000", str(tmp_path / "steps"), "", strategy="SPOT", restart_job_on_worker_restart=True)
    assert "STOCKOUT" in job.error.message
    assert len(market.preempted) == gang.MAX_PREEMPTIONS + 1
    assert Market(seed=1, rate=1).draw(3, "x") == Market(seed=1, rate=1).draw(3, "x")


def test_spread_is_later_each_time_and_of_both_kinds() -> None:
    for seed in range(20):
        found = spread(4, seed=seed, nodes=3)
        moments = [one.at_fraction or 0 for one in found]
        assert moments == sorted(moments)
        assert 0.1 < moments[0] < moments[-1] < 0.9
        assert {one.kind for one in found[:2]} == {"sigterm", "sigkill"}
        assert found[0].node == 0
        assert all(0 <= one.node < 3 for one in found)
