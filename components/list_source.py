"""The component that lists the source: it says where the shards of its present state are, or will be."""

from kfp import dsl

from components.container import container


@dsl.container_component
def list_source(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    data_date: str,
    uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    finished: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """List the source; give out the URI that its fingerprint names, and whether shards are there.

    A schedule has fixed parameters: this task is how its runs see new data, and so it is never cached.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
        config: URI of the stage's sections and the hash of their content.
        data_date: The moment that the data is of.
        uri: Folder of the shards.
        finished: yes or no.
    """
    return container(
        ["sharding.task", "--where"],
        {
            "--line": line,
            "--run": run_id,
            "--flags": flags,
            "--config": config,
            "--data-date": data_date,
            "--write-uri": uri,
            "--write-finished": finished,
        },
    )
