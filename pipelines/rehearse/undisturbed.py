"""Undisturbed reference of a rehearsal: repeats sharding and training without disturbances, and compares."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from contracts.artifacts import CheckpointManifest, ShardManifest
from contracts.config.load import stage_config
from inspection.stages import find_output
from pipelines.rehearse.result import UNDISTURBED, Comparison, Result

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from rehearsal.cloud import LocalCloud

# Longer than any rehearsed training.
_LIMIT_S = 3600.0
_POLL_S = 0.5
# Time for the local Vertex AI to set a job's error.
_ERROR_LIMIT_S = 90.0


def begin_training(cloud: LocalCloud, config: RunConfig, line: str, submission_ended: threading.Event) -> Future[str]:
    """Train again in a thread, once the disturbed training has succeeded, in parallel to the line's next stages.

    Requires that preemptions are the only disturbance. `submission_ended` is set when the submission has ended. The
    result is the reason why the training failed; empty: it succeeded.
    """
    future: Future[str] = Future()

    def run() -> None:
        try:
            while not any(map(_has_succeeded, _trainings(cloud, config))) and not submission_ended.wait(_POLL_S):
                continue
            future.set_result(_train(cloud, config, f"{line}-{UNDISTURBED}"))
        except Exception as error:  # noqa: BLE001  # thread entry point: future.result() raises it
            future.set_exception(error)

    threading.Thread(target=run, name=UNDISTURBED, daemon=True).start()
    return future


def compare(cloud: LocalCloud, disturbed: Result, training: Future[str] | None, *, has_rules: bool) -> Comparison:
    """Shard and train again without disturbances, and compare.

    Training uses the shards and the profile of the disturbed run: another measurement could split the batch
    differently, which changes the last bits. Shards are written again if fault rules could have affected them.
    `training` is the result of `begin_training`, if it was called.
    """
    line = f"{disturbed.line}-{UNDISTURBED}"
    shards = None
    if has_rules:
        failure = _shard(disturbed.config, line)
        undisturbed_uri = find_output(line, UNDISTURBED, "shard")
        if failure or undisturbed_uri is None:
            return Comparison(None, None, f"the second sharding failed: {failure or 'it has no output'}")
        shards = _same_shards(find_output(disturbed.line, disturbed.run_id, "shard"), undisturbed_uri)
    reason = _train(cloud, disturbed.config, line) if training is None else training.result()
    trained = find_output(line, UNDISTURBED, "train")
    if reason or trained is None:
        return Comparison(shards, None, reason or "the undisturbed training has no output")
    return Comparison(shards, CheckpointManifest.load(trained).parameters_sha256)


def _shard(config: RunConfig, line: str) -> str:
    """Shard the source on this machine; return the last line of its output on failure, else an empty text."""
    values = json.dumps(stage_config(config.with_keys(resources={"beam_runner": "fnapi"}), "shard"))
    command = [sys.executable, "-m", "sharding.task", "--line", line, "--run", UNDISTURBED, "--config-json", values]
    answer = subprocess.run(
        [*command, "--end-with-parent"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode == 0:
        return ""
    return next(reversed(answer.stderr.strip().splitlines()), f"exit code {answer.returncode}")


def _same_shards(disturbed_uri: str | None, undisturbed_uri: str) -> bool:
    """Return whether names, sizes and checksums of all files are equal."""
    if disturbed_uri is None:
        return False
    first, second = (ShardManifest.load(uri) for uri in (disturbed_uri, undisturbed_uri))
    return (first.fingerprint, first.shards) == (second.fingerprint, second.shards)


def _has_succeeded(job: Any) -> bool:
    return bool(job.state.name.endswith("_SUCCEEDED"))


def _trainings(cloud: LocalCloud, config: RunConfig) -> list[Any]:
    from google.cloud.aiplatform_v1 import types

    name = f"{config.run.name}-train"
    return [job for job in cloud.store.list("projects/", types.CustomJob) if job.display_name == name]


def _for_undisturbed(executor_input: str, line: str) -> str:
    """Return a task's executor input, changed to the line of the undisturbed run."""
    disturbed_line = line.removesuffix(f"-{UNDISTURBED}")
    values = json.loads(executor_input)
    inputs = values["inputs"]
    config = json.loads(inputs["parameterValues"]["config"])
    config["run"]["name"] = line.rpartition("/")[2]
    inputs["parameterValues"]["config"] = json.dumps(config)
    outputs = json.dumps(values["outputs"]).replace(f"{disturbed_line}/", f"{line}/")
    run_id = values["outputs"]["outputFile"].split("/")[-3]
    values["outputs"] = json.loads(outputs.replace(f"/{run_id}/", f"/{UNDISTURBED}/"))
    return json.dumps(values)


def _train(cloud: LocalCloud, config: RunConfig, line: str) -> str:
    """Run the training job again in another line; return the reason of a failure, else an empty text."""
    from google.cloud.aiplatform_v1 import JobServiceClient, types

    from rehearsal.vertex.store import has_ended

    disturbed = next(iter(_trainings(cloud, config)), None)
    if disturbed is None or not _has_succeeded(disturbed):
        return "the disturbed training did not succeed"
    disturbed_spec = disturbed.job_spec
    pools = [types.WorkerPoolSpec(pool) for pool in disturbed_spec.worker_pool_specs]
    for pool in pools:
        arguments = list(pool.container_spec.args)
        place = arguments.index("--executor-input") + 1
        arguments[place] = _for_undisturbed(arguments[place], line)
        pool.container_spec.args = arguments
    job_spec = {
        "worker_pool_specs": pools,
        # STANDARD machines are not preempted.
        "scheduling": {"strategy": "STANDARD", "restart_job_on_worker_restart": True},
        "service_account": disturbed_spec.service_account,
        "network": disturbed_spec.network,
    }
    parent, _, _ = disturbed.name.partition("/customJobs/")
    region = parent.rpartition("/")[2]
    # REST, since gRPC reads trusted certificates only once per process.
    client = JobServiceClient(
        transport="rest", client_options={"api_endpoint": f"https://{region}-aiplatform.googleapis.com"}
    )
    job = client.create_custom_job(parent=parent, custom_job={"display_name": UNDISTURBED, "job_spec": job_spec}).name
    ended = cloud.store.wait(job, has_ended, _LIMIT_S)
    if _has_succeeded(ended):
        return ""
    if not has_ended(ended):
        return f"the undisturbed training did not end within {_LIMIT_S:.0f} s"
    explained = cloud.store.wait(job, lambda message: message.error.code, _ERROR_LIMIT_S)
    return f"the undisturbed training ended as {ended.state.name}: {explained.error.message}"
