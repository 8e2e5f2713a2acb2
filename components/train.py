"""The component that trains."""

from kfp import dsl

from components.container import container


@dsl.container_component
def train(
    config: str,
    shards: dsl.Input[dsl.Dataset],
    report: dsl.Input[dsl.Artifact],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    classes: dsl.Output[dsl.ClassificationMetrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
) -> dsl.ContainerSpec:
    """Train, and evaluate the best weights on the test split.

    Args:
        config: The keys of the configuration that the stage reads, as JSON.
        shards: What is trained on.
        report: The profile, which cuts the batch.
        model: The best checkpoint.
        metrics: Its numbers on the test split, and of the training.
        classes: Confusion matrix and ROC curve, where the task is a classification into one class each.
        summary: The stage in Markdown.
        page: The stage in pictures, one document.
    """
    return container("train")
