"""The component that reports on a training: what `report` gives out, and the classification, where its task is one."""

from kfp import dsl

from components.container import container


@dsl.container_component
def report_training(
    line: str,
    run_id: str,
    uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
    classification: dsl.Output[dsl.ClassificationMetrics],
) -> dsl.ContainerSpec:
    """Give out the URI of the best checkpoint, the training's numbers, summary and page, and its classification.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        uri: Folder of the checkpoint.
        metrics: Its numbers, and nothing else.
        summary: The same and more in Markdown; URIs and hashes are in the metadata.
        page: The training in pictures, one HTML document; the same metadata.
        classification: Of a classification: confusion matrix and ROC curve on the test split.
    """
    return container(
        ["pipeline_tasks.task", "report"],
        {
            "--stage": "train",
            "--line": line,
            "--run-id": run_id,
            "--executor-input": dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER,
            "--write-uri": uri,
            "--write-metrics": metrics.path,
            "--write-summary": summary.path,
            "--write-page": page.path,
            "--write-classification": classification.path,
        },
    )
