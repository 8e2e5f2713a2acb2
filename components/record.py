"""The component with which a run ends, well or not."""

from kfp import dsl

from components.container import container


@dsl.container_component
def record(
    config: str,
    job: str,
    report: dsl.Output[dsl.HTML],
) -> dsl.ContainerSpec:
    """Write the run's record and its report.

    Args:
        config: The whole configuration, as JSON.
        job: Resource name of the PipelineJob, whose tasks tell how they ended.
        report: The run in pictures, one document.
    """
    return container("record")
