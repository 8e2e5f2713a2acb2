"""A weekly schedule under a fast clock: real runs of a real spec, the skip while one is active, the change of time."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml
from google.cloud import aiplatform_v1 as gapic
from google.oauth2.credentials import Credentials
from kfp import compiler, dsl

from rehearsal.clock import Clock
from rehearsal.cloud import LocalCloud

PARENT = "projects/acme/locations/europe-west4"
WEEK_S = 7 * 86400.0
# A Sunday; summer time ends in Berlin a week later.
BEGIN = datetime(2026, 10, 18, tzinfo=UTC).timestamp()
DEADLINE_S = 240.0
# Says what it was scheduled for, then stays until it may go.
_TASK = """
import pathlib, sys, time
print("scheduled for", sys.argv[1], flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
"""


@dsl.container_component  # type: ignore[untyped-decorator]
def say(moment: str, go: str) -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="a.io/i", command=["python", "-c", _TASK], args=[moment, go])


@dsl.pipeline(name="weekly")  # type: ignore[untyped-decorator]
def weekly(go: str) -> None:
    say(moment=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER, go=go)


def test_weeks_pass_and_runs_are_started_or_skipped(tmp_path: Path) -> None:
    go, path = tmp_path / "go", tmp_path / "weekly.yaml"
    compiler.Compiler().compile(weekly, str(path))
    job = {
        "pipeline_spec": yaml.safe_load(path.read_text()),
        "runtime_config": {"gcs_output_directory": "gs://weekly-line/root", "parameter_values": {"go": str(go)}},
    }
    clock = Clock(BEGIN, rate=0)
    projects = {"acme": "123456789012"}
    with LocalCloud(tmp_path / "cloud", projects=projects, buckets=["weekly-line"], clock=clock) as cloud:
        client = gapic.ScheduleServiceClient(
            transport="rest",
            credentials=Credentials(cloud.vertex.access.token),
            client_options={"api_endpoint": cloud.vertex.endpoint},
        )
        made = client.create_schedule(
            parent=PARENT,
            schedule={
                "display_name": "weekly",
                "cron": "TZ=Europe/Berlin 0 6 * * 1",
                "max_concurrent_run_count": 1,
                "max_concurrent_active_run_count": 1,
                "max_run_count": 2,
                "create_pipeline_job_request": {"parent": PARENT, "pipeline_job": job},
            },
        )

        def wait(name: str, until: Callable[[Any], bool]) -> Any:
            found = cloud.store.wait(name, until, DEADLINE_S)
            assert until(found), found
            return found

        def succeed(name: str) -> None:
            found = wait(name, lambda job: job.state.name.endswith(("_SUCCEEDED", "_FAILED")))
            assert found.state.name == "PIPELINE_STATE_SUCCEEDED", found.error

        # Half a week a second. The first run stays until its successor has been skipped, the second one goes through.
        clock.rate = WEEK_S / 2
        skipped = wait(made.name, lambda s: s.last_scheduled_run_response.run_response.startswith("Skipped"))
        assert skipped.started_run_count == 1
        clock.rate = 0
        go.touch()
        (first,) = cloud.store.scheduled_s
        succeed(first)
        clock.rate = WEEK_S / 2
        assert wait(made.name, lambda s: s.state == gapic.Schedule.State.COMPLETED).started_run_count == 2
        second = next(name for name in cloud.store.scheduled_s if name != first)
        succeed(second)
        times = [datetime.fromtimestamp(due, UTC) for due in cloud.store.scheduled_s.values()]
        said = [entry["jsonPayload"]["message"] for entry in cloud.logs.entries()]
    # Six o'clock in Berlin on a Monday: in UTC it is four in summer, and five from the 26th on.
    assert times[0] == datetime(2026, 10, 19, 4, tzinfo=UTC)
    assert times[1].hour == 5 or times[1] > datetime(2027, 3, 28, tzinfo=UTC)
    assert {(t.astimezone(ZoneInfo("Europe/Berlin")).hour, t.weekday()) for t in times} == {(6, 0)}
    for time in times:
        assert f"scheduled for {time:%Y-%m-%dT%H:%M:%SZ}" in said, said
