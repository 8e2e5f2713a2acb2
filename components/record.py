"""The component with which a run on Vertex AI ends, well or not."""

from kfp import dsl

from components.container import container


@dsl.container_component
def record(line: str, config: str, run_name: str) -> dsl.ContainerSpec:
    """Write the run's record and report.

    Args:
        line: URI of the line's folder.
        config: URI of the whole configuration and the hash of its content.
        run_name: Name of the pipeline job, which is the run's id.
    """
    return container(["pipeline_tasks.task", "record"], {"--line": line, "--config": config, "--run-id": run_name})
