"""The component that submits the shard stage to Dataflow and does not wait for it."""

from kfp import dsl

from components.container import container


@dsl.container_component
def launch_dataflow(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    data_date: str,
    expect: str,
    gcp_resources: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """Submit the job; give out its name.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
        config: URI of the stage's sections and the hash of their content.
        data_date: The moment that the data is of.
        expect: The folder that the listing named: a source that has changed since is an error.
        gcp_resources: The job, as Google's components pass it on.
    """
    return container(
        ["sharding.task"],
        {
            "--line": line,
            "--run": run_id,
            "--flags": flags,
            "--config": config,
            "--data-date": data_date,
            "--expect": expect,
            "--launch": gcp_resources,
        },
    )
