"""The wiring of the stages in the pipeline of Vertex AI.

A stage is a sub-pipeline with one signature; its tasks are in pipelines/graph/vertex.py: a look for what is finished, a
job, and a report.
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kfp import dsl

from pipelines.jobs import INPUTS

PLACE = ("region", "strategy", "max_wait", "timeout", "train_timeout")
"""Parameters of the CustomJobs."""

COMMON = ("line", "run_id", "flags", "config", "data_date", *PLACE)
"""What every stage takes, as text."""


@dataclass(frozen=True)
class Stages:
    """The four stages as sub-pipelines: each returns the URI of what it has finished.

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
