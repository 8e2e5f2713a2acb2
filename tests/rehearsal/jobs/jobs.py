"""Custom jobs without a server between, and programs that play their containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1

from rehearsal.jobs.custom_jobs import CustomJobRuns
from rehearsal.jobs.market import Market
from tests.rehearsal.world import LIMIT_S, PARENT, make_place, texts, wait_for_end, wait_until

IMAGE = "europe-west4-docker.pkg.dev/acme/images/trainer@sha256:" + "0" * 64
# Writes what it finds to a file of its own, and waits until it is told to go on.
TELL = """
import json, os, sys, time
folder = sys.argv[1]
names = ["CLUSTER_SPEC", "CLOUD_ML_JOB_ID", "HOME", "TMPDIR", "OMP_NUM_THREADS", "AIP_MODEL_DIR", "GIVEN"]
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
# A training that is not one: steps to its events, as trainer.task leaves them. Told to stop it ends with a code, waits
# to be killed ("wait"), goes on ("deaf"), or goes on and ends when it is told again ("twice"). It begins when all
# machines have, and waits where it is told to until the test has made a file.
TRAIN = """
import json, os, signal, socket, sys, time
goal, beside, waits, then = int(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), sys.argv[4]
folder = os.path.join(os.environ["TMPDIR"], "shardline-x")
os.makedirs(folder, exist_ok=True)
step = os.path.getsize(beside) if os.path.exists(beside) else 0
def leave(*_):
    print("told to stop", flush=True)
    if then == "wait":
        time.sleep(600)
    if then == "twice":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    elif then != "deaf":
        sys.exit(int(then))
signal.signal(signal.SIGTERM, leave)
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
spec = json.loads(os.environ["CLUSTER_SPEC"])
host, _, port = spec["cluster"]["workerpool0"][0].rpartition(":")
if spec["task"]["type"] != "workerpool0":
    while True:
        try:
            connection = socket.create_connection((host, int(port)))
            time.sleep(600)
        except OSError:
            # The first machine comes later.
            time.sleep(0.05)
if "workerpool1" in spec["cluster"]:
    server = socket.create_server(("", int(port)))
    connection = server.accept()
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
        place = make_place(folder)
        self.store, self.logs, self.folder = place.store, place.logs, folder
        self.runs = CustomJobRuns(place, **options)

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
        name = self.submit(code, *args, **options)
        wait_for_end(self.store, name)
        failed = aiplatform_v1.JobState.JOB_STATE_FAILED
        job = self.store.wait(name, lambda job: job.state != failed or job.error.code, LIMIT_S)
        assert job.end_time, texts(self.logs)
        return job


def wait_for_preemptions(market: Market, count: int) -> None:
    """Wait until so many machines were taken away."""
    wait_until(lambda: len(market.preempted) >= count, lambda: market.preempted)
