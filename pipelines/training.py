"""The line as a graph: one task a stage, wired by what each one made."""

from kfp import dsl

from components.export import export
from components.profile import profile
from components.shard import shard
from components.train import train


@dsl.pipeline(name="shardline")  # type: ignore[untyped-decorator]
def training(
    line: str,
    run_id: str,
    flags: str,
    shard_config: str,
    profile_config: str,
    train_config: str,
    export_config: str,
) -> None:
    """Raw images to an engine with a proof of parity.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for every stage: fresh, debug.
        shard_config: URI of the sections of stage shard, with the hash of their content.
        profile_config: The same of stage profile.
        train_config: The same of stage train.
        export_config: The same of stage export.
    """
    common = {"line": line, "run_id": run_id, "flags": flags}
    shards = shard(config=shard_config, **common)
    report = profile(config=profile_config, shards=shards.output, **common)
    weights = train(config=train_config, shards=shards.output, profile=report.output, **common)
    export(config=export_config, shards=shards.output, checkpoint=weights.output, **common)
