"""The component with which a run of a schedule with `schedule.when` finds out whether it has anything to train on."""

from kfp import dsl

from components.container import container


@dsl.container_component
def look_for_new(
    line: str,
    run_id: str,
    config: str,
    data_date: str,
    verdict: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """List the source, and compare it with what the newest run that succeeded has found.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        config: URI of the whole configuration and the hash of its content.
        data_date: The moment that the data is of.
        verdict: go or nothing to do.
    """
    return container(
        ["sharding.firing"],
        {
            "--line": line,
            "--run": run_id,
            "--config": config,
            "--data-date": data_date,
            "--write-verdict": verdict,
        },
    )
