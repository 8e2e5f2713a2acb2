"""The component that reports on a stage: its output for the next one, numbers and a summary for the console."""

from kfp import dsl

from components.launch import BASE_IMAGE


@dsl.container_component
def report(
    stage: str,
    line: str,
    run_id: str,
    uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    at: str = "",
) -> dsl.ContainerSpec:
    """Give out the URI of what a stage has made, its metrics and its summary.

    Args:
        stage: Its name.
        line: URI of the line's folder.
        run_id: Id of the run.
        uri: Folder of the stage's document.
        metrics: Its numbers; URIs and hashes are in the metadata.
        summary: The same in Markdown.
        at: Where the output is, if nobody of the run has said so: a job of Dataflow publishes and is gone.
    """
    return dsl.ContainerSpec(
        image=BASE_IMAGE,
        command=["python", "-m", "inspection.task", "report"],
        args=[
            "--stage",
            stage,
            "--line",
            line,
            "--run-id",
            run_id,
            "--at",
            at,
            "--executor-input",
            dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER,
            "--write-uri",
            uri,
            "--write-metrics",
            metrics.path,
            "--write-summary",
            summary.path,
        ],
    )
