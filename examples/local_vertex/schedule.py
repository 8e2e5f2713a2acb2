"""A schedule that starts a pipeline every minute, twice, and tells each run which minute it was for.

    shardline rehearse --serve --clock-rate 30 > cloud.env &
    . cloud.env && python examples/local_vertex/schedule.py

Nothing here knows of the local cloud: with a project's credentials and --root it runs on Vertex AI, where the
two minutes take two minutes.
"""

import argparse
import tempfile
import time
from pathlib import Path

from google.cloud import aiplatform
from kfp import compiler, dsl


@dsl.component(base_image="python:3.11")  # type: ignore[untyped-decorator]
def report(moment: str) -> str:
    """Say for when this run was scheduled."""
    print("scheduled for", moment)
    return moment


@dsl.pipeline(name="every-minute")  # type: ignore[untyped-decorator]
def every_minute() -> None:
    """Report the time of the schedule."""
    report(moment=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER)


def main() -> None:
    """Create the schedule, wait until it is completed, and show its runs."""
    parser = argparse.ArgumentParser(description="Schedule a pipeline.")
    parser.add_argument("--location", default="us-central1")
    parser.add_argument("--root", default="gs://rehearsal-line/pipelines")
    options = parser.parse_args()
    aiplatform.init(location=options.location)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "every_minute.json")
        compiler.Compiler().compile(every_minute, path)
        job = aiplatform.PipelineJob(display_name="every-minute", template_path=path, pipeline_root=options.root)
        schedule = job.create_schedule(cron="TZ=Europe/Berlin * * * * *", display_name="every-minute", max_run_count=2)
    while schedule.state.name != "COMPLETED":
        time.sleep(1)
    for run in schedule.list_jobs():
        run.wait()
        print(run.name, run.state.name)


if __name__ == "__main__":
    main()
