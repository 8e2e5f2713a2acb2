"""The component that looks for a finished profile before a machine is paid for."""

from kfp import dsl

from components.container import container


@dsl.container_component
def find_profile(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    shards: str,
    machine: str,
    software: str,
    uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    finished: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """Give out where the profile of these inputs is, or will be, and whether it is there.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
        config: URI of the stage's sections and the hash of their content.
        shards: URI of the shards.
        machine: What the machine is called that would measure.
        software: Digest of the image that would measure.
        uri: Folder of the profile.
        finished: yes or no.
    """
    return container(
        ["trainer.profiling.task", "--where"],
        {
            "--line": line,
            "--run": run_id,
            "--flags": flags,
            "--config": config,
            "--shards": shards,
            "--machine": machine,
            "--software": software,
            "--write-uri": uri,
            "--write-finished": finished,
        },
    )
