"""The component of stage train: shards and a profile into weights."""

from kfp import dsl

from components.launch import BASE_IMAGE


@dsl.component(base_image=BASE_IMAGE, install_kfp_package=False)
def train(config: str, line: str, run_id: str, flags: str, shards: str, profile: str) -> str:
    """Turn shards and a profile into weights; return the URI of the finished folder.

    Args:
        config: URI of the stage's sections and the hash of their content.
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
        shards: URI of the shards.
        profile: URI of the profile report.
    """
    # kfp copies this body into a program of its own: it sees no import of this module.
    from components.launch import launch_stage

    return launch_stage("train", config=config, line=line, run_id=run_id, flags=flags, shards=shards, profile=profile)
