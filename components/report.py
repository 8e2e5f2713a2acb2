"""The component that reports on a stage: its output for the next one, and what the console shows of it."""

from kfp import dsl

from components.container import container


@dsl.container_component
def report(
    stage: str,
    line: str,
    run_id: str,
    uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
    at: str = "",
) -> dsl.ContainerSpec:
    """Give out the URI of what a stage has made, its numbers, its summary and its page.

    Args:
        stage: Its name.
        line: URI of the line's folder.
        run_id: Id of the run.
        uri: Folder of the stage's document.
        metrics: Its numbers, and nothing else.
        summary: The same and more in Markdown; URIs and hashes are in the metadata.
        page: The stage in pictures, one HTML document; the same metadata.
        at: Where the output is, if nobody of the run has said so: a job of Dataflow publishes and is gone.
    """
    return container(
        ["pipeline_tasks.task", "report"],
        {
            "--stage": stage,
            "--line": line,
            "--run-id": run_id,
            "--at": at,
            "--executor-input": dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER,
            "--write-uri": uri,
            "--write-metrics": metrics.path,
            "--write-summary": summary.path,
            "--write-page": page.path,
        },
    )
