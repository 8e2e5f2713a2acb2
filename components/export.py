"""The component that exports the model and proves what is served."""

from kfp import dsl

from components.container import container


@dsl.container_component
def export(
    config: str,
    shards: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    served: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
) -> dsl.ContainerSpec:
    """Export to ONNX and TensorRT, and hold the served file to the trained weights.

    Args:
        config: The keys of the configuration that the stage reads, as JSON.
        shards: What the gates are measured on.
        model: The checkpoint.
        served: What serves, and the verdict on it.
        metrics: Numbers of the gates.
        summary: The stage in Markdown.
        page: The stage in pictures, one document.
    """
    return container("export")
