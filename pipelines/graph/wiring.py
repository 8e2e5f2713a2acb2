"""The line as a graph: one function wires the stages; what a stage is, differs by the place where it runs.

A stage is a sub-pipeline with one signature. On this machine its body is one task that waits for the stage's command
(here); on Vertex AI it is a look for what is finished, a job, and a report (pipelines/graph/vertex.py).
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kfp import dsl

from components.stage import run_stage
from pipelines.jobs import INPUTS

PLACE = ("region", "strategy", "max_wait", "timeout", "train_timeout")
"""Parameters of the CustomJobs."""

COMMON = ("line", "run_id", "flags", "config", "data_date", *PLACE)
"""What every stage takes, as text."""


@dataclass(frozen=True)
class Stages:
    """The four stages of one place, as sub-pipelines: each returns the URI of what it has finished.

    All take COMMON, and the URIs of their inputs (INPUTS).
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


def sub_pipeline(name: str, inputs: Sequence[str], build: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a sub-pipeline that takes text and returns text.

    Args:
        name: Its name.
        inputs: Names of what it takes: kfp reads them from the signature.
        build: Adds its tasks to the pipeline and returns its output; is given its inputs by name.
    """

    def body(*values: Any) -> Any:
        return build(dict(zip(inputs, values, strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(word, kind, annotation=str) for word in inputs], return_annotation=str
    )
    return dsl.pipeline(name=name)(body)


def stage(name: str, build: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a stage: a sub-pipeline with the inputs that `wire` gives it."""
    return sub_pipeline(name, (*COMMON, *INPUTS[name]), build)


def _local_stage(name: str) -> Any:
    taken = ("line", "run_id", "flags", "config", *INPUTS[name])
    return stage(name, lambda given: run_stage(stage=name, **{word: given[word] for word in taken}).output)


LOCAL = Stages(**{name: _local_stage(name) for name in INPUTS})


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
        {"line": line, "run_id": run_id, "flags": flags} | dict.fromkeys(("data_date", *PLACE), ""),
    )
