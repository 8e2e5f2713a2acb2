import re
import threading
from typing import Any

import pytest

from contracts.errors import ConfigError
from pipelines.follow import cancel
from pipelines.logs import read_logs
from pipelines.runs import find_jobs
from pipelines.submit import make_run_id, submit
from tests.pipelines.vertex.conftest import PROJECT, Cloud, MakeConfig, make_ready, wait_for

POLL_S = 0.05


@pytest.fixture
def job(cloud: Cloud, make_config: MakeConfig, tiny_spec: dict[str, Any]) -> Any:
    """A run whose custom job goes on."""
    cloud.pipelines.script.outcomes["us-central1"] = "running"
    found = submit(make_ready(make_config(), tiny_spec), make_run_id("tiny"), lambda _: None)
    wait_for(lambda: bool(find_jobs(found)))
    return found


def write(cloud: Cloud, job: Any, text: str, *, replica: str = "workerpool0-0", severity: str = "INFO") -> None:
    labels = {"job_id": find_jobs(job)[0].id, "task_name": replica, "project_id": PROJECT}
    cloud.server.state.logs.write("ml_job", labels, text, severity, cloud.clock.now())


def texts(job: Any, **options: Any) -> list[str]:
    return [re.split("  +", line, maxsplit=3)[3] for line in read_logs(job, **options)]


def test_the_lines_of_the_runs_own_jobs_come_in_order(cloud: Cloud, job: Any) -> None:
    write(cloud, job, "step 1")
    cloud.server.state.logs.write("ml_job", {"job_id": "1", "project_id": PROJECT}, "not ours", "INFO", 2e9)
    write(cloud, job, "a rank is gone", replica="workerpool1-0", severity="ERROR")
    found = [line.split("  ", 1)[1] for line in read_logs(job)]
    assert found == ["INFO     train/workerpool0-0  step 1", "ERROR    train/workerpool1-0  a rank is gone"]
    assert texts(job, task="train", machine="workerpool1-0") == ["a rank is gone"]
    assert texts(job, task="shard") == []
    with pytest.raises(ConfigError, match="no task export"):
        texts(job, task="export")


def test_follow_tells_each_line_once_and_ends_with_the_run(cloud: Cloud, job: Any) -> None:
    write(cloud, job, "step 1")
    lines: list[str] = []
    came = threading.Event()

    def read() -> None:
        try:
            for line in read_logs(job, follow=True, poll_s=POLL_S):
                lines.append(re.split("  +", line, maxsplit=3)[3])
                came.set()
        finally:
            came.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert came.wait(120)
    write(cloud, job, "step 2")
    cancel(job, lambda _: None, poll_s=POLL_S)
    reader.join(120)
    assert not reader.is_alive()
    assert lines == ["step 1", "step 2"]
