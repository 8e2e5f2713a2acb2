"""The pipeline of Vertex AI, read from top to bottom.

    list-source -> shard -> profile -> train -> export -> register -> record

Profile, train, export and register are CustomJobs with the artifacts of their components: a dataset, a report, a model,
a served model. Finished work is reused by KFP's cache, and by the stages' content-named folders; list-source and record
run every time. The record task runs after failures too, and reads the tasks of its own job.
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
from collections.abc import Callable
from typing import Any

from google_cloud_pipeline_components.v1.custom_job import create_custom_training_job_from_component as as_custom_job
from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
from kfp import dsl

from components.container import with_image
from components.export import export
from components.list_source import list_source
from components.profile import profile
from components.record import record
from components.register import register
from components.shard import shard
from components.train import train
from contracts import storage
from contracts.config import MachineSection, RunConfig
from contracts.machines import find_machine, serving_section
from contracts.result import RUNS_FOLDER


def make_pipeline(config: RunConfig) -> Callable[..., Any]:
    """Return the pipeline of a configuration, to be compiled.

    Args:
        config: The resolved configuration, with both images (pipelines/images.py).

    Raises:
        ConfigError: Unknown machine type.
    """
    # Created here, since this fails inside of the pipeline function (kubeflow/pipelines#9320).
    nodes, measures = config.resources.num_nodes, config.profile.method != "off"
    machine, serving = config.resources.machine, serving_section(config)
    cpu, gpu = config.cloud.images.cpu, config.cloud.images.gpu
    list_task, shard_task, record_task = (with_image(component, cpu) for component in (list_source, shard, record))
    profile_job = custom_job(config, with_image(profile, gpu), "profile", machine, nodes=nodes)
    trains = with_image(train, gpu, without="" if measures else "report")
    train_job = custom_job(config, trains, "train", machine, nodes=nodes)
    export_job = custom_job(config, with_image(export, gpu), "export", serving)
    register_job = custom_job(config, with_image(register, gpu), "register", serving)

    # The folder contains the run id, so train always misses KFP's cache: the stage itself finds a finished training.
    folder = storage.join(config.run.root, config.run.name, RUNS_FOLDER, dsl.PIPELINE_JOB_NAME_PLACEHOLDER)
    board = {"base_output_directory": folder} if config.vertex.tensorboard else {}

    def add_line(configs: dict[str, Any], place: dict[str, Any], train_timeout: str) -> None:
        job = dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER
        created_at = dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER
        scheduled_at = dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER
        listed = list_task(config=configs["run"], job=job, created_at=created_at, scheduled_at=scheduled_at)
        listed.set_caching_options(False)
        sharded = shard_task(config=configs["shard"], listing=listed.output)
        data, tasks = {"shards": sharded.outputs["shards"]}, [listed, sharded]
        cut = {}
        if measures:
            profiled = profile_job(config=configs["profile"], **data, **place)
            cut = {"report": profiled.outputs["report"]}
            tasks.append(profiled)
        trained = train_job(config=configs["train"], **data, **cut, **board, **{**place, "timeout": train_timeout})
        exported = export_job(config=configs["export"], model=trained.outputs["model"], **data, **place)
        tasks += [trained, exported]
        if config.register.upload:
            tasks.append(register_job(config=configs["register"], served=exported.outputs["served"], **data, **place))
        recorded = record_task(config=configs["run"], job=job).after(*tasks)
        recorded.ignore_upstream_failure().set_caching_options(False)

    @dsl.pipeline(name="shardline", description="Raw data to a TensorRT engine with a proof of parity.")
    def shardline(
        project: str,
        region: str,
        strategy: str,
        max_wait: str,
        timeout: str,
        train_timeout: str,
        shard_config: str,
        profile_config: str,
        train_config: str,
        export_config: str,
        register_config: str,
        run_config: str,
    ) -> None:
        configs = {
            "run": run_config,
            "shard": shard_config,
            "profile": profile_config,
            "train": train_config,
            "export": export_config,
            "register": register_config,
        }
        place = {
            "project": project,
            "location": region,
            "strategy": strategy,
            "max_wait_duration": max_wait,
            "timeout": timeout,
        }
        if not config.vertex.mail:
            add_line(configs, place, train_timeout)
            return
        mail = VertexNotificationEmailOp(recipients=list(config.vertex.mail)).set_caching_options(False)
        with dsl.ExitHandler(mail, name="line"):
            add_line(configs, place, train_timeout)

    return shardline


def custom_job(config: RunConfig, component: Any, stage: str, section: MachineSection, *, nodes: int = 1) -> Any:
    """Return a component that runs as a CustomJob on machines of one kind.

    Args:
        config: The resolved configuration.
        component: Runs on each machine; the first one writes its outputs.
        stage: Part of the job's name.
        section: The machine.
        nodes: Number of machines.

    Raises:
        ConfigError: Unknown machine type.
    """
    machine, cloud, vertex = find_machine(section), config.cloud, config.vertex
    env = config.resources.env if stage in ("profile", "train") else {}
    psc = {"network_attachment": vertex.psc_attachment} if vertex.psc_attachment else None
    return as_custom_job(
        component,
        display_name=f"{config.run.name}-{stage}",
        replica_count=nodes,
        machine_type=machine.type,
        accelerator_type=machine.accelerator_type if machine.gpus else "",
        accelerator_count=machine.gpus,
        boot_disk_type=machine.boot_disk,
        boot_disk_size_gb=section.boot_disk_gb,
        restart_job_on_worker_restart=True,
        service_account=cloud.service_account,
        network=vertex.peered_network,
        encryption_spec_key_name=cloud.kms_key,
        tensorboard=vertex.tensorboard if stage == "train" else "",
        labels=dict(cloud.labels),
        env=[{"name": name, "value": value} for name, value in sorted(env.items())],
        psc_interface_config=psc,
    )
