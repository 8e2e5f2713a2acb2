"""The pipeline of Vertex AI: the run begins, the stages follow, the model is registered, the run is recorded.

The stages are wired by pipelines/graph/wiring.py:

    shard      list the source; unless its shards are there: launch the Dataflow job, wait; report
    profile    look for the profile; unless it is there: a CustomJob; report
    train      a CustomJob; report
    export     a CustomJob on the GPU that will serve; report
    register   the gate; if it says so: the model registry

Nothing is cached by KFP: what is finished is known by its content-addressed folder, which holds no run id and is looked
at by the tasks themselves (docs/decisions/0004-reuse-by-content.md). No job is tried again by KFP: a retry would find
the failed job in gcp_resources and wait for that one.

The record is written whatever happened before; mail is sent by an exit handler, where somebody wants it: KFP allows
neither an exit handler within another, nor an exit task that waits for something, so the record is no exit task but one
that ignores failures.
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google_cloud_pipeline_components.types import artifact_types
from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from google_cloud_pipeline_components.v1.model import ModelUploadOp
from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
from google_cloud_pipeline_components.v1.wait_gcp_resources import WaitGcpResourcesOp
from kfp import dsl

from components.begin import begin
from components.find_model import find_model
from components.find_profile import find_profile
from components.gate import gate, refused
from components.launch_dataflow import launch_dataflow
from components.list_source import list_source
from components.record import record
from components.registered import registered
from components.report import report
from components.report_training import report_training
from components.titles import titled
from contracts.config import RunConfig
from contracts.result import RUNS_FOLDER
from contracts.serving import model_name
from pipelines.graph.wiring import PLACE, Stages, stage, sub_pipeline, wire
from pipelines.images.record import Containers
from pipelines.jobs import INPUTS, machine_name, worker_pools

# Triton under Vertex AI: it listens where the environment says, which Vertex AI sets from these
# (https://docs.cloud.google.com/vertex-ai/docs/predictions/using-nvidia-triton).
SERVING_PORT = 8080
PREDICT_ROUTE, HEALTH_ROUTE = "/predict", "/health"


def make_pipeline(config: RunConfig, containers: Containers) -> Callable[..., Any]:
    """Return the pipeline of a configuration, to be compiled.

    Raises:
        ConfigError: A machine is none.
    """
    stages = vertex_stages(config, containers)
    register = register_stage(config, containers) if config.vertex.model.upload else None
    image = containers.pipeline_image

    def add_stages(given: dict[str, Any], configs: dict[str, Any]) -> list[Any]:
        made = wire(stages, configs, given)
        tasks = [titled(task, name) for name, task in made.items()]
        if register is not None:
            registers = register(**_some(given, ("line", "run_id")), export=tasks[-1].output, config=configs["export"])
            tasks.append(titled(never_cached(registers), "register"))
        return tasks

    def build(configs: dict[str, Any], run_config: Any, given: dict[str, Any]) -> None:
        started = titled(own(begin(line=given["line"], config=run_config), image), "begin")
        given = {**given, "run_id": started.outputs["run_id"], "data_date": started.outputs["data_date"]}
        tasks = add_stages(given, configs)
        last = record(line=given["line"], config=run_config, run_name=dsl.PIPELINE_JOB_NAME_PLACEHOLDER)
        own(titled(last, "record"), image).after(started, *tasks).ignore_upstream_failure()

    @dsl.pipeline(name="shardline", description="Raw data to a TensorRT engine with a proof of parity.")
    def shardline(
        line: str,
        flags: str,
        region: str,
        strategy: str,
        max_wait: str,
        timeout: str,
        train_timeout: str,
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
            "train_timeout": train_timeout,
        }
        if not config.vertex.mail:
            build(configs, run_config, given)
            return
        mail = never_cached(VertexNotificationEmailOp(recipients=list(config.vertex.mail)))
        titled(mail, "vertex-pipelines-notification-email")
        with dsl.ExitHandler(mail, name="line"):
            build(configs, run_config, given)

    return shardline


def vertex_stages(config: RunConfig, containers: Containers) -> Stages:
    """Return the stages of a configuration.

    Raises:
        ConfigError: A machine is none.
    """
    return Stages(
        shard=_shard_stage(containers.pipeline_image),
        profile=_profile_stage(config, containers),
        train=_job_stage(config, "train", containers),
        export=_job_stage(config, "export", containers),
    )


def own(task: Any, image: str) -> Any:
    """Return a task of ours, on our image, never cached."""
    return never_cached(task.set_container_image(image))


def never_cached(task: Any) -> Any:
    """Return a task whose result is never taken from an earlier run."""
    return task.set_caching_options(enable_caching=False)


def _shard_stage(image: str) -> Any:
    taken = ("line", "run_id", "flags", "config", "data_date")

    def list_and_launch(given: dict[str, Any]) -> Any:
        source = titled(own(list_source(**given), image), "list-source")
        with dsl.If(source.outputs["finished"] == "no", name="no-shards-yet"):
            job = titled(own(launch_dataflow(expect=source.outputs["uri"], **given), image), "launch-dataflow")
            waited = never_cached(WaitGcpResourcesOp(gcp_resources=job.outputs["gcp_resources"]))
            titled(waited, "wait-gcp-resources")
        return source.outputs["uri"]

    shard_what_is_new = sub_pipeline("shard-what-is-new", taken, list_and_launch)

    def shard(given: dict[str, Any]) -> Any:
        made = titled(never_cached(shard_what_is_new(**_some(given, taken))), "shard-what-is-new")
        return _report("shard", given, made.output, image)

    return stage("shard", shard)


def _profile_stage(config: RunConfig, containers: Containers) -> Any:
    image = containers.pipeline_image
    # The digest stands for all that is installed: of what looks for the profile, nothing is the machine's.
    software, hardware = containers.profile.image, machine_name(config.resources.machine)
    job = _job(config, "profile", containers)
    looked_at = ("line", "run_id", "flags", "config", "shards")
    taken = ("line", "run_id", "flags", "config", *PLACE, "shards")

    def find_or_measure(given: dict[str, Any]) -> Any:
        look = find_profile(machine=hardware, software=software, **_some(given, looked_at))
        found = titled(own(look, image), "find-profile")
        with dsl.If(found.outputs["finished"] == "no", name="no-profile-yet"):
            job(given, ["--machine", hardware, "--software", software, "--shards", given["shards"]])
        return found.outputs["uri"]

    profile_if_missing = sub_pipeline("profile-if-missing", taken, find_or_measure)

    def profile(given: dict[str, Any]) -> Any:
        made = titled(never_cached(profile_if_missing(**_some(given, taken))), "profile-if-missing")
        return _report("profile", given, made.output, image)

    return stage("profile", profile)


def _job_stage(config: RunConfig, name: str, containers: Containers) -> Any:
    """Return a stage that is one job, always started: its command finds by itself what is finished."""
    image, job = containers.pipeline_image, _job(config, name, containers)

    def run(given: dict[str, Any]) -> Any:
        ended = job(given, [word for made in INPUTS[name] for word in (f"--{made}", given[made])])
        ids = _some(given, ("line", "run_id"))
        told = report_training(**ids) if name == "train" else report(stage=name, **ids)
        titled(told, "report-training" if name == "train" else "report")
        return own(told, image).after(ended).outputs["uri"]

    return stage(name, run)


def _report(name: str, given: dict[str, Any], at: Any, image: str) -> Any:
    told = own(report(stage=name, at=at, **_some(given, ("line", "run_id"))), image)
    return titled(told, "report").outputs["uri"]


def _some(given: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names}


def _job(config: RunConfig, stage: str, containers: Containers) -> Callable[..., Any]:
    """Return a function that adds the stage's CustomJob to the pipeline that is being built."""
    container, cloud, vertex = getattr(containers, stage), config.cloud, config.vertex
    fixed: dict[str, Any] = {
        "display_name": f"{config.run.name}-{stage}",
        "project": cloud.project,
        "restart_job_on_worker_restart": True,
        "service_account": cloud.service_account,
        "tensorboard": vertex.tensorboard if stage == "train" else "",
        "network": vertex.peered_network,
        "labels": dict(cloud.labels),
        "encryption_spec_key_name": cloud.kms_key,
    }
    if vertex.psc_attachment:
        fixed["psc_interface_config"] = {"network_attachment": vertex.psc_attachment}

    def add(given: dict[str, Any], more: Sequence[Any]) -> Any:
        line, run_id = given["line"], given["run_id"]
        words = ("--line", line, "--run", run_id, "--flags", given["flags"], "--config", given["config"], *more)
        task = CustomTrainingJobOp(
            **fixed,
            worker_pool_specs=worker_pools(config, stage, container, words),
            location=given["region"],
            strategy=given["strategy"],
            max_wait_duration=given["max_wait"],
            timeout=given["train_timeout" if stage == "train" else "timeout"],
            # Vertex AI's own folders (AIP_*): beside the run's documents. kfp puts the values into the text.
            base_output_directory=f"{line}/{RUNS_FOLDER}/{run_id}",
        )
        return titled(never_cached(task), "custom-training-job")

    return add


def register_stage(config: RunConfig, containers: Containers) -> Callable[..., Any]:
    """Return the sub-pipeline that uploads a proven export: a new model, or a new version of the one of this name."""
    image, cloud = containers.pipeline_image, config.cloud
    name, served_name = config.run.name, model_name(config.task.name)
    model: Mapping[str, Any] = {
        "project": cloud.project,
        "location": cloud.region,
        "display_name": name,
        "version_aliases": ["latest"],
        "labels": dict(cloud.labels),
        "encryption_spec_key_name": cloud.kms_key,
    }

    @dsl.pipeline(name="register")
    def register(line: str, run_id: str, export: str, config: str) -> None:
        given = {"line": line, "run_id": run_id}
        decided = own(gate(export=export, config=config, serving_image=containers.serving_image, **given), image)
        titled(decided, "gate")
        with dsl.If(decided.outputs["verdict"] == "upload", name="proven"):
            known = own(find_model(project=cloud.project, region=cloud.region, name=name), image)
            titled(known, "find-model")
            served = _import(
                artifact_types.UnmanagedContainerModel,
                decided.outputs["artifact_uri"],
                {"containerSpec": container_spec(decided.outputs["image"], served_name)},
            )
            titled(served, "importer")
            with dsl.If(known.outputs["exists"] == "yes", name="new-version"):
                parent = _import(
                    artifact_types.VertexModel, known.outputs["uri"], {"resourceName": known.outputs["resource"]}
                )
                titled(parent, "importer-2")
                version = ModelUploadOp(unmanaged_container_model=served.output, parent_model=parent.output, **model)
                sent = titled(never_cached(version), "model-upload").outputs["gcp_resources"]
                titled(own(registered(upload=sent, **given), image), "registered")
            with dsl.If(known.outputs["exists"] != "yes", name="new-model"):
                first = ModelUploadOp(unmanaged_container_model=served.output, **model)
                sent = titled(never_cached(first), "model-upload-2").outputs["gcp_resources"]
                titled(own(registered(upload=sent, **given), image), "registered-2")
        with dsl.If(decided.outputs["verdict"] != "upload", name="not-proven"):
            titled(own(refused(verdict=decided.outputs["verdict"]), image), "refused")

    return register


def _import(kind: Any, uri: Any, metadata: Mapping[str, Any]) -> Any:
    """Return the task that makes an artifact of something that is there.

    Anew each time: the same folder may be served by another image than the last time.
    """
    return never_cached(dsl.importer(artifact_uri=uri, artifact_class=kind, reimport=True, metadata=dict(metadata)))


def container_spec(image: Any, model: str) -> dict[str, Any]:
    """Return how Vertex AI serves the repository (ModelContainerSpec)."""
    return {
        "imageUri": image,
        "command": ["tritonserver"],
        "args": [
            "--model-repository=$(AIP_STORAGE_URI)",
            "--allow-vertex-ai=true",
            f"--vertex-ai-default-model={model}",
            "--disable-auto-complete-config",
        ],
        "ports": [{"containerPort": SERVING_PORT}],
        "predictRoute": PREDICT_ROUTE,
        "healthRoute": HEALTH_ROUTE,
    }
