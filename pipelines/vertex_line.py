"""The production graph: the run begins, the stages follow, the model is registered, the run is recorded.

The stages are wired by the function that the local graph uses (pipelines/training.py). The record is written whatever
happened before; mail is sent by an exit handler, where somebody wants it: KFP allows neither an exit handler within
another, nor an exit task that waits for something, so the record is no exit task but one that ignores failures.
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
from collections.abc import Callable
from typing import Any

from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
from kfp import dsl

from components.begin import begin
from components.record import record
from components.titles import titled
from contracts.config import RunConfig
from pipelines.images import Containers
from pipelines.training import wire
from pipelines.vertex_stages import never_cached, own, register_stage, vertex_stages


def make_pipeline(config: RunConfig, containers: Containers) -> Callable[..., Any]:
    """Return the pipeline of a configuration, to be compiled.

    Raises:
        ConfigError: A machine is none.
    """
    stages = vertex_stages(config, containers)
    register = register_stage(config, containers) if config.vertex.model.upload else None
    image = containers.pipeline_image

    def build(configs: dict[str, Any], run_config: Any, given: dict[str, Any]) -> None:
        started = titled(own(begin(line=given["line"], config=run_config), image), "begin")
        common = {**given, "run_id": started.outputs["run_id"], "data_date": started.outputs["data_date"]}
        made = wire(stages, configs, common)
        tasks = [started, *(titled(task, name) for name, task in made.items())]
        if register is not None:
            ids = {"line": given["line"], "run_id": started.outputs["run_id"]}
            registers = register(export=tasks[-1].output, config=configs["export"], **ids)
            tasks.append(titled(never_cached(registers), "register"))
        last = record(line=given["line"], config=run_config, run_name=dsl.PIPELINE_JOB_NAME_PLACEHOLDER)
        own(titled(last, "record"), image).after(*tasks).ignore_upstream_failure()

    @dsl.pipeline(name="shardline", description="Raw data to a TensorRT engine with a proof of parity.")
    def shardline(
        line: str,
        flags: str,
        region: str,
        strategy: str,
        max_wait: str,
        timeout: str,
        shard_config: str,
        profile_config: str,
        train_config: str,
        export_config: str,
        run_config: str,
        learning_rate: float,
        global_batch_size: int,
        data: str,
        code_version: str,
    ) -> None:
        configs = {"shard": shard_config, "profile": profile_config, "train": train_config, "export": export_config}
        given = {
            "line": line,
            "flags": flags,
            "region": region,
            "strategy": strategy,
            "max_wait": max_wait,
            "timeout": timeout,
        }
        if not config.vertex.mail:
            build(configs, run_config, given)
            return
        mail = never_cached(VertexNotificationEmailOp(recipients=list(config.vertex.mail)))
        titled(mail, "vertex-pipelines-notification-email")
        with dsl.ExitHandler(mail, name="line"):
            build(configs, run_config, given)

    return shardline
