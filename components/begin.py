"""The component with which a run on Vertex AI begins."""

from kfp import dsl

from components.container import container


@dsl.container_component
def begin(
    line: str,
    config: str,
    run_id: dsl.OutputPath(str),  # type: ignore[valid-type]
    data_date: dsl.OutputPath(str),  # type: ignore[valid-type]
    run_name: str = dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
    created_at: str = dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
    scheduled_at: str = dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
) -> dsl.ContainerSpec:
    """Write run-start.json; give out the run's id and the moment that its data is of.

    Args:
        line: URI of the line's folder.
        config: URI of the whole configuration and the hash of its content.
        run_id: Id of the run, for the tasks after it: the placeholder is read in this task alone.
        data_date: When the run was scheduled for, else when it was created; ISO 8601.
        run_name: Name of the pipeline job.
        created_at: When it was created.
        scheduled_at: When a schedule was to create it.
    """
    return container(
        ["pipeline_tasks.task", "begin"],
        {
            "--line": line,
            "--config": config,
            "--run-id": run_name,
            "--created-at": created_at,
            "--scheduled-at": scheduled_at,
            "--write-run-id": run_id,
            "--write-data-date": data_date,
        },
    )
