"""The component of stage export: the best checkpoint into an engine and its proof."""

from kfp import dsl

from components.launch import BASE_IMAGE


@dsl.component(base_image=BASE_IMAGE, install_kfp_package=False)
def export(config: str, line: str, run_id: str, flags: str, shards: str, checkpoint: str) -> str:
    """Turn the best checkpoint into an engine and its proof; return the URI of the finished folder.

    Args:
        config: URI of the stage's sections and the hash of their content.
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for the stage: fresh, debug.
        shards: URI of the shards, whose test split is the proof's.
        checkpoint: URI of the finished training folder.
    """
    # kfp copies this body into a program of its own: it sees no import of this module.
    from components.launch import launch_stage

    return launch_stage(
        "export", config=config, line=line, run_id=run_id, flags=flags, shards=shards, checkpoint=checkpoint
    )
