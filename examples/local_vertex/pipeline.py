"""A pipeline of two components, one of which reads the other's dataset.

    shardline rehearse --serve > cloud.env &
    . cloud.env && python examples/local_vertex/pipeline.py

Nothing here knows of the local cloud: with a project's credentials and --root it runs on Vertex AI.
"""

import argparse
import tempfile
from pathlib import Path

from google.cloud import aiplatform
from kfp import compiler, dsl


@dsl.component(base_image="python:3.11")  # type: ignore[untyped-decorator]
def write(count: int, numbers: dsl.Output[dsl.Dataset]) -> None:
    """Write the numbers below `count`, one a line."""
    with open(numbers.path, "w") as file:
        file.write("\n".join(str(number) for number in range(count)))


@dsl.component(base_image="python:3.11")  # type: ignore[untyped-decorator]
def add(numbers: dsl.Input[dsl.Dataset], metrics: dsl.Output[dsl.Metrics]) -> int:
    """Return the sum of the numbers."""
    with open(numbers.path) as file:
        total = sum(int(line) for line in file)
    metrics.log_metric("total", total)
    return total


@dsl.pipeline(name="adding")  # type: ignore[untyped-decorator]
def adding(count: int = 5) -> int:
    """Return the sum of the numbers below `count`."""
    return add(numbers=write(count=count).outputs["numbers"]).outputs["Output"]  # type: ignore[no-any-return]


def main() -> None:
    """Compile, run, and show what came out."""
    parser = argparse.ArgumentParser(description="Run a pipeline.")
    parser.add_argument("--location", default="us-central1")
    parser.add_argument("--root", default="gs://rehearsal-line/pipelines")
    options = parser.parse_args()
    aiplatform.init(location=options.location)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "adding.json")
        compiler.Compiler().compile(adding, path)
        job = aiplatform.PipelineJob(display_name="adding", template_path=path, pipeline_root=options.root)
    job.run()
    print(job.state.name)
    for task in job.task_details:
        for entry in task.outputs.values():
            print(task.task_name, *(f"{artifact.uri} {dict(artifact.metadata)}" for artifact in entry.artifacts))


if __name__ == "__main__":
    main()
