"""Jobs of Vertex AI as a backend: one is submitted, read and cancelled in a local cloud by Google's clients."""

import json
import os
import subprocess
import sys
from pathlib import Path

from contracts.config import RunConfig
from rehearsal.cloud import LocalCloud
from rehearsal.machines.machine import Scale
from tests.conftest import small_config

CONFIG = RunConfig.model_validate(
    small_config(resources={"machine": {"type": "n1-standard-4"}}, cloud={"project": "acme", "region": "us-central1"})
)
# In a process of its own: gRPC, which the log is read by, trusts the certificates of this cloud alone.
JOB = """
import json, sys, time
from contracts.config import RunConfig, MachineSection
from pipelines.backends.vertex import Vertex
from pipelines.jobs import JobSpec, Phase

backend = Vertex(RunConfig.model_validate_json(sys.argv[1]))
spec = JobSpec(
    name="talks", command=("python", "-u", "-c"), args=("import time; print('a word'); time.sleep(600)",),
    image="us-docker.pkg.dev/p/r/i:1", machine=MachineSection(type="n1-standard-4"),
)
name = backend.submit(spec)
lines, phases = [], []
while not lines:
    lines = list(backend.logs(name))
    time.sleep(0.2)
phases.append(backend.state(name).phase)
backend.cancel(name)
while not (state := backend.state(name)).ended:
    time.sleep(0.2)
backend.cancel(name)
print(json.dumps([lines, [*phases, state.phase]]))
"""


def test_a_job_of_vertex_ai_is_read_and_cancelled(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOB, CONFIG.model_dump_json()]
    with LocalCloud(tmp_path, projects={"acme": "123456789012"}, scale=Scale(time_scale=0.01)) as cloud:
        environment = {**os.environ, **cloud.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines, phases = json.loads(done.stdout)
    assert "a word" in lines and phases == ["running", "cancelled"]
