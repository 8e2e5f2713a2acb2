"""The component that lists the source: it says where the shards of its present state are, or will be."""

from kfp import dsl

from components.container import container


@dsl.container_component
def list_source(
    config: str,
    job: str,
    created_at: str,
    scheduled_at: str,
    listing: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """Begin the run, and list the source.

    A schedule has fixed parameters: this task is how its runs see new data, and so it is never cached.

    Args:
        config: The whole configuration, as JSON.
        job: Resource name of the PipelineJob.
        created_at: When the run was created.
        scheduled_at: When a schedule was to create it.
        listing: Where the listing lies: a folder that is named by its content.
    """
    return container("list-source")
