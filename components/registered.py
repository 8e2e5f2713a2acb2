"""The component that writes down what the registry has made of an export."""

from kfp import dsl

from components.container import container


@dsl.container_component
def registered(line: str, run_id: str, upload: str) -> dsl.ContainerSpec:
    """Leave the upload where the run's record finds it.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        upload: What ModelUploadOp gives out: the operation that has made the model, as GcpResources.
    """
    return container(["pipeline_tasks.task", "registered"], {"--line": line, "--run-id": run_id, "--upload": upload})
