"""The component that looks for the registered model."""

from kfp import dsl

from components.container import container


@dsl.container_component
def find_model(
    project: str,
    region: str,
    name: str,
    resource: dsl.OutputPath(str),  # type: ignore[valid-type]
    uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    exists: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """Give out the model of this name, which the export becomes a version of.

    Args:
        project: Project id.
        region: Region of the registry.
        name: Display name of the model.
        resource: Its resource name; empty: there is none.
        uri: Its address.
        exists: yes or no.
    """
    return container(
        ["pipeline_tasks.task", "find-model"],
        {
            "--project": project,
            "--region": region,
            "--name": name,
            "--write-resource": resource,
            "--write-uri": uri,
            "--write-exists": exists,
        },
    )
