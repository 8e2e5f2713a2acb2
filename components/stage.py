"""The component that runs a stage on this machine: inputs into the URI of a finished folder."""

from kfp import dsl

from components.launch import BASE_IMAGE


@dsl.component(base_image=BASE_IMAGE, install_kfp_package=False)
def run_stage(
    stage: str,
    config: str,
    line: str,
    run_id: str,
    flags: str,
    shards: str = "",
    profile: str = "",
    checkpoint: str = "",
) -> str:
    """Run a stage to its end; return the URI of the finished folder.

    Args:
        stage: Its name: shard, profile, train or export.
        config: URI of the stage's sections and the hash of their content.
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
        shards: URI of the shards, for stages that read them.
        profile: URI of the profile report, for stages that read it.
        checkpoint: URI of the finished training folder, for stages that read it.
    """
    # kfp copies this body into a program of its own: it sees no import of this module.
    from components.launch import launch_stage

    return launch_stage(
        stage,
        config=config,
        line=line,
        run_id=run_id,
        flags=flags,
        shards=shards,
        profile=profile,
        checkpoint=checkpoint,
    )
