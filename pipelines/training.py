"""The line as a graph: one function wires the stages; what a stage is, differs by the place where it runs.

A stage is a sub-pipeline with one signature. On this machine its body is one task that waits for the stage's command
(here); on Vertex AI it is a look for what is finished, a job, and a report (pipelines/vertex_stages.py).
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kfp import dsl

from components.export import export as local_export
from components.profile import profile as local_profile
from components.shard import shard as local_shard
from components.train import train as local_train


@dataclass(frozen=True)
class Stages:
    """The four stages of one place, as sub-pipelines: each returns the URI of what it has finished.

    All take, as text: line, run_id, flags, config, data_date, region, strategy, max_wait and timeout; and the URIs of
    their inputs: shards (profile, train, export), profile (train), checkpoint (export).
    """

    shard: Callable[..., Any]
    profile: Callable[..., Any]
    train: Callable[..., Any]
    export: Callable[..., Any]


def wire(stages: Stages, configs: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Wire the stages inside of a pipeline; return the task of each by its name.

    Args:
        stages: What to wire.
        configs: URI of each stage's sections, with the hash of their content.
        common: What every stage is given.
    """

    def add(stage: Callable[..., Any], **inputs: Any) -> Any:
        # What is finished is known by its folder: the stages look themselves.
        return stage(**inputs, **common).set_caching_options(enable_caching=False)

    shards = add(stages.shard, config=configs["shard"])
    report = add(stages.profile, config=configs["profile"], shards=shards.output)
    weights = add(stages.train, config=configs["train"], shards=shards.output, profile=report.output)
    engine = add(stages.export, config=configs["export"], shards=shards.output, checkpoint=weights.output)
    return {"shard": shards, "profile": report, "train": weights, "export": engine}


@dsl.pipeline(name="shard")
def _shard(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    data_date: str,
    region: str,
    strategy: str,
    max_wait: str,
    timeout: str,
) -> str:
    return local_shard(config=config, line=line, run_id=run_id, flags=flags).output


@dsl.pipeline(name="profile")
def _profile(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    data_date: str,
    region: str,
    strategy: str,
    max_wait: str,
    timeout: str,
    shards: str,
) -> str:
    return local_profile(config=config, line=line, run_id=run_id, flags=flags, shards=shards).output


@dsl.pipeline(name="train")
def _train(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    data_date: str,
    region: str,
    strategy: str,
    max_wait: str,
    timeout: str,
    shards: str,
    profile: str,
) -> str:
    return local_train(config=config, line=line, run_id=run_id, flags=flags, shards=shards, profile=profile).output


@dsl.pipeline(name="export")
def _export(
    line: str,
    run_id: str,
    flags: str,
    config: str,
    data_date: str,
    region: str,
    strategy: str,
    max_wait: str,
    timeout: str,
    shards: str,
    checkpoint: str,
) -> str:
    return local_export(
        config=config, line=line, run_id=run_id, flags=flags, shards=shards, checkpoint=checkpoint
    ).output


LOCAL = Stages(shard=_shard, profile=_profile, train=_train, export=_export)


@dsl.pipeline(name="shardline")
def training(
    line: str,
    run_id: str,
    flags: str,
    shard_config: str,
    profile_config: str,
    train_config: str,
    export_config: str,
) -> None:
    """Raw data to an engine with a proof of parity, on this machine.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        flags: Words for every stage: fresh, debug.
        shard_config: URI of the sections of stage shard, with the hash of their content.
        profile_config: The same of stage profile.
        train_config: The same of stage train.
        export_config: The same of stage export.
    """
    wire(
        LOCAL,
        {"shard": shard_config, "profile": profile_config, "train": train_config, "export": export_config},
        # What follows is Vertex AI's alone.
        {"line": line, "run_id": run_id, "flags": flags}
        | dict.fromkeys(("data_date", "region", "strategy", "max_wait", "timeout"), ""),
    )
