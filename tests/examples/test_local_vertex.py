"""The programs of examples/local_vertex, each run against `shardline rehearse --serve`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples" / "local_vertex"
# 30 s to start, run and stop on busy cores.
pytestmark = pytest.mark.line


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables of a program beside a cloud whose minutes take two seconds."""
    folder = tmp_path_factory.mktemp("served")
    command = [sys.executable, "-m", "pipelines.cli", "rehearse", "--serve", "--clock-rate=30", "-o", "json"]
    variables = {**os.environ, "TMPDIR": str(folder)}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True, env=variables
        ) as server,
    ):
        assert server.stdout is not None
        found = json.loads(server.stdout.readline() or "{}")
        assert found, (folder / "log").read_text()
        try:
            yield {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1", **found["environment"]}
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(60)
    assert code == 0, (folder / "log").read_text()


def run(name: str, environment: dict[str, str]) -> list[str]:
    """Return what a program printed; the SDK logs to the same stream."""
    command = [sys.executable, "-W", "ignore", EXAMPLES / name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def test_a_custom_job_of_two_machines(environment: dict[str, str]) -> None:
    assert run("custom_job.py", environment)[-3:] == [
        "JOB_STATE_SUCCEEDED",
        "gs://rehearsal-line/hello/workerpool0-0.txt: done",
        "gs://rehearsal-line/hello/workerpool1-0.txt: done",
    ]


def test_a_pipeline_of_two_components(environment: dict[str, str]) -> None:
    state, *outputs = run("pipeline.py", environment)[-3:]
    assert state == "PIPELINE_STATE_SUCCEEDED"
    assert [line.split()[0] for line in outputs] == ["write", "add"]
    assert outputs[1].endswith("{'total': 10.0}")


def test_a_schedule_of_two_runs(environment: dict[str, str]) -> None:
    runs = [line.split() for line in run("schedule.py", environment) if line.startswith("every-minute-")]
    assert [state for _, state in runs] == ["PIPELINE_STATE_SUCCEEDED"] * 2
    (later, earlier) = (int(name.removeprefix("every-minute-")) for name, _ in runs)
    assert later > earlier and later % 100 == earlier % 100 == 0


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_they_are_short_and_know_of_google_alone(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert not {"shardline", "rehearsal", "contracts", "pipelines"} & {
        word for line in text.splitlines() if line.startswith(("import ", "from ")) for word in line.split()
    }
