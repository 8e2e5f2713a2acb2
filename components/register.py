"""The component that registers a model that serves."""

from kfp import dsl

from components.container import container


@dsl.container_component
def register(
    config: str,
    served: dsl.Input[dsl.Model],
    registered: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> dsl.ContainerSpec:
    """Upload an export that is proven, or that may be unproven, as a new version of the line's model.

    Args:
        config: The keys of the configuration that registration reads, as JSON.
        served: The export.
        registered: The version in the model registry; of one that is not uploaded, why.
        summary: The same in Markdown.
    """
    return container("register")
