"""The component that registers a model that serves."""

from kfp import dsl

from components.container import container


@dsl.container_component
def register(
    config: str,
    shards: dsl.Input[dsl.Dataset],
    served: dsl.Input[dsl.Model],
    registered: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
) -> dsl.ContainerSpec:
    """Upload an export as a new version of the line's model; put it into production where it is not worse.

    Args:
        config: The keys of the configuration that registration reads, as JSON.
        shards: Their test split is what the export in production is compared on.
        served: The export.
        registered: The decision, and the version in the model registry.
        summary: The same in Markdown.
    """
    return container("register")
