"""The component that measures how to cut the batch."""

from kfp import dsl

from components.container import container


@dsl.container_component
def profile(
    config: str,
    shards: dsl.Input[dsl.Dataset],
    report: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
) -> dsl.ContainerSpec:
    """Find the batch size and the number of loader processes, on the machines that will train.

    Args:
        config: The keys of the configuration that the stage reads, as JSON.
        shards: What is trained on.
        report: What was measured and chosen.
        metrics: Its numbers.
        summary: The stage in Markdown.
        page: The stage in pictures, one document.
    """
    return container("profile")
