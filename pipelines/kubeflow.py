"""`shardline compile --place kubeflow`: the line for Kubeflow Pipelines on Google Kubernetes Engine.

    list-source -> shard -> profile -> train -> export; record, whatever happened

Each stage is one pod. There are no artifacts: KFP's launcher (launcher_v2.go) fails a task whose artifact is outside of
the pipeline root, which the installation sets, and downloads each input artifact into the pod. Tasks pass the folders
of stages as text. KFP's cache is off: each stage finds finished work in its content-named folder. Not verified on a
real installation.
"""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from components.container import container, with_image
from components.task import INPUTS, OUTPUTS
from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.compile import stage_parameters
from pipelines.manifests import RETRIES, StageJob

_INPUTS = ("shards", "report", "model")
# Between two starts of a pod.
_BACKOFF_S = 30


def compile_kubeflow(config: RunConfig) -> bytes:
    """Compile the line to YAML: the pipeline, and its Kubernetes settings as a second document.

    Args:
        config: The resolved configuration, with absolute paths and both images (pipelines/images.py).

    Raises:
        ConfigError: A stage cannot run as one pod.
    """
    stages = ("shard", "train", "export") if config.profile.method == "off" else ("shard", "profile", "train", "export")
    if config.resources.num_nodes > 1:
        raise ConfigError(
            f"--place kubeflow with resources.nodes = {config.resources.nodes}",
            allowed="1: each stage is one pod, with all GPUs of its machine",
            todo="take a machine with more GPUs, or run the stage by `shardline manifests`",
        )
    if config.register.upload:
        raise ConfigError(
            "--place kubeflow with register.upload = true",
            allowed="false: the registry is Vertex AI's",
            todo="set register.upload=false, and take `shardline promote RUN` to put a run into production",
        )
    if find_spec("kfp.kubernetes") is None:
        raise ConfigError(
            "--place kubeflow without the package kfp-kubernetes",
            allowed="both installed",
            todo="run `pip install kfp-kubernetes==2.17.0`",
        )
    # Input URIs are only known at run time; any bucket folder passes the checks.
    jobs = {name: StageJob(config, name, dict.fromkeys(INPUTS[name].values(), config.run.root)) for name in stages}
    parameters = {name: text for name, text in stage_parameters(config).items() if name != "register_config"}
    with tempfile.TemporaryDirectory(prefix="shardline-") as folder:
        path = Path(folder) / "line.yaml"
        compiler.Compiler().compile(_make_pipeline(config, jobs), str(path), pipeline_parameters=parameters)
        return path.read_bytes()


def _make_pipeline(config: RunConfig, jobs: dict[str, StageJob]) -> Callable[..., Any]:
    """Return the pipeline function of a configuration; `jobs` has the pods of its stages."""
    cpu, gpu = config.cloud.images.cpu, config.cloud.images.gpu
    stages = {name: with_image(_stage_component(name), cpu if name == "shard" else gpu) for name in jobs}
    list_task, record_component = with_image(_list_source, cpu), with_image(_record, cpu)
    limit_s = int(config.resources.timeout_hours * 3600)

    @dsl.pipeline(name=config.run.name, description="Raw data to a TensorRT engine with a proof of parity.")
    def shardline(
        shard_config: str, profile_config: str, train_config: str, export_config: str, run_config: str
    ) -> None:
        configs = {"shard": shard_config, "profile": profile_config, "train": train_config, "export": export_config}
        run = dsl.PIPELINE_JOB_ID_PLACEHOLDER
        record_task = _with_rules(record_component(config=run_config, run=run), limit_s)
        with dsl.ExitHandler(record_task, name="line"):
            listed = list_task(
                config=run_config,
                run=run,
                created_at=dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
                scheduled_at=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
            )
            _with_rules(listed, limit_s)
            folders: dict[str, Any] = dict.fromkeys(_INPUTS, "")
            for name, component in stages.items():
                inputs = {
                    input_name: folders[input_name] if input_name in INPUTS[name] else "" for input_name in _INPUTS
                }
                task = component(config=configs[name], run=run, listing=listed.output, **inputs)
                _place(_with_rules(task, limit_s), jobs[name])
                folders[OUTPUTS[name]] = task.output

    return shardline


def _with_rules(task: dsl.PipelineTask, limit_s: int) -> dsl.PipelineTask:
    """Set retries, a time-out of `limit_s` seconds per attempt, and no caching."""
    from kfp import kubernetes

    # Argo limits the total time of all attempts, to one hour by default.
    longest = f"{(RETRIES + 1) * (limit_s + _BACKOFF_S)}s"
    task.set_retry(RETRIES, backoff_duration=f"{_BACKOFF_S}s", backoff_factor=1.0, backoff_max_duration=longest)
    task.set_caching_options(False)
    kubernetes.set_timeout(task, limit_s)
    return task


def _place(task: dsl.PipelineTask, job: StageJob) -> None:
    """Copy node selector, tolerations, resources and variables of a stage's job to a task."""
    from kfp import kubernetes

    pod = job.pod()
    resources = pod["containers"][0]["resources"]
    if limits := resources.get("limits"):
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(limits["nvidia.com/gpu"])
    else:
        task.set_cpu_request(str(resources["requests"]["cpu"]))
    for variable in pod["containers"][0]["env"]:
        if "value" in variable:
            task.set_env_variable(variable["name"], variable["value"])
    for label, value in pod["nodeSelector"].items():
        kubernetes.add_node_selector(task, label, value)
    for toleration in pod["tolerations"]:
        kubernetes.add_toleration(task, **toleration)
    for mount in pod["containers"][0]["volumeMounts"]:
        kubernetes.empty_dir_mount(task, mount["name"], mount["mountPath"], medium="Memory")


def _stage_component(name: str) -> Any:
    """Return the component of a stage. Inputs are text; empty for those that the stage does not have."""

    def component(
        config: str,
        run: str,
        listing: str,
        shards: str,
        report: str,
        model: str,
        folder: dsl.OutputPath(str),  # type: ignore[valid-type]
    ) -> dsl.ContainerSpec:
        return container(name)

    component.__name__ = name
    return dsl.container_component(component)


@dsl.container_component
def _list_source(
    config: str,
    run: str,
    created_at: str,
    scheduled_at: str,
    listing: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    return container("list-source")


@dsl.container_component
def _record(config: str, run: str) -> dsl.ContainerSpec:
    return container("record")
