"""The component that shards the data: it starts or finds its Dataflow job, and waits."""

from kfp import dsl

from components.container import container


@dsl.container_component
def shard(
    config: str,
    listing: str,
    shards: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    summary: dsl.Output[dsl.Markdown],
    page: dsl.Output[dsl.HTML],
) -> dsl.ContainerSpec:
    """Write what is listed as shards.

    Args:
        config: The keys of the configuration that the stage reads, as JSON.
        listing: Where the listing lies.
        shards: The shards with their index; the manifest says what they hold.
        metrics: Numbers of samples, classes and bytes.
        summary: The stage in Markdown.
        page: The stage in pictures, one document.
    """
    return container("shard")
