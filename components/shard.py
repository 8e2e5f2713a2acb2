"""The component of stage shard: the source into shards and their manifest."""

from kfp import dsl

from components.launch import BASE_IMAGE


@dsl.component(base_image=BASE_IMAGE, install_kfp_package=False)
def shard(config: str, line: str, run_id: str, flags: str) -> str:
    """Turn the source into shards and their manifest; return the URI of the finished folder.

    Args:
        config: URI of the stage's sections and the hash of their content.
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
    """
    # kfp copies this body into a program of its own: it sees no import of this module.
    from components.launch import launch_stage

    return launch_stage("shard", config=config, line=line, run_id=run_id, flags=flags)
