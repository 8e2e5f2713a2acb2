"""The same work once more without disturbances, so that there is something to compare a disturbed rehearsal with."""

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

# More than any training that a rehearsal can play.
_LIMIT_S = 3600.0
_POLL_S = 0.5
# Until the local Vertex has set a job's error.
_ERROR_LIMIT_S = 90.0


def begin_training(cloud: LocalCloud, config: RunConfig, line: str, over: threading.Event) -> Future[str]:
    """Train again as soon as the disturbed training has succeeded, beside the stages that follow it in the line.

    Nothing but preemptions may disturb the cloud; `over` is set when the submission has ended. The result is why the
    training did not end well; empty: it did.
    """
    future: Future[str] = Future()

    def run() -> None:
        try:
            while not any(map(_has_succeeded, _trainings(cloud, config))) and not over.wait(_POLL_S):
                continue
            future.set_result(_train(cloud, config, f"{line}-{UNDISTURBED}"))
        except Exception as error:  # noqa: BLE001  # a thread's entry: whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name=UNDISTURBED, daemon=True).start()
    return future


def compare(cloud: LocalCloud, disturbed: Result, training: Future[str] | None, *, has_rules: bool) -> Comparison:
    """Shard and train again without faults, on machines that stay, and compare.

    Training starts from the shards and the profile of the disturbed run: the profile is a measurement, and another cut
    of the batch would end in other last bits. The shards are made again where rules of the buckets could have touched
    them. `training` is that of `begin_training`, where it has begun already.
    """
    line = f"{disturbed.line}-{UNDISTURBED}"
    shards = None
    if has_rules:
        failure = _shard(disturbed.config, line)
        again = find_output(line, UNDISTURBED, "shard")
        if failure or again is None:
            return Comparison(None, None, f"the second sharding failed: {failure or 'it left no result'}")
        shards = _same_shards(find_output(disturbed.line, disturbed.run_id, "shard"), again)
    reason = _train(cloud, disturbed.config, line) if training is None else training.result()
    trained = find_output(line, UNDISTURBED, "train")
    if reason or trained is None:
        return Comparison(shards, None, reason or "the undisturbed training has left no result")
    return Comparison(shards, CheckpointManifest.load(trained).parameters_sha256)


def _shard(config: RunConfig, line: str) -> str:
    """Shard the source on this machine; return the last line of the output where that fails."""
    resources = config.resources.model_copy(update={"beam_runner": "fnapi"})
    values = json.dumps(stage_config(config.model_copy(update={"resources": resources}), "shard"))
    command = [sys.executable, "-m", "sharding.task", "--line", line, "--run", UNDISTURBED, "--config-json", values]
    # It ends with this process, whatever ends it.
    answer = subprocess.run(
        [*command, "--end-with-parent"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode == 0:
        return ""
    return next(reversed(answer.stderr.strip().splitlines()), f"exit code {answer.returncode}")


def _same_shards(made: str | None, again: str) -> bool:
    """Compare names, sizes and checksums of all files."""
    if made is None:
        return False
    one, other = (ShardManifest.load(uri) for uri in (made, again))
    return (one.fingerprint, one.shards) == (other.fingerprint, other.shards)


def _has_succeeded(job: Any) -> bool:
    return bool(job.state.name.endswith("_SUCCEEDED"))


def _trainings(cloud: LocalCloud, config: RunConfig) -> list[Any]:
    from google.cloud.aiplatform_v1 import types

    name = f"{config.run.name}-train"
    return [job for job in cloud.store.list("projects/", types.CustomJob) if job.display_name == name]


def _for_undisturbed(executor_input: str, line: str) -> str:
    """Return what a task is given, for the same work in the line beside its own."""
    here = line.removesuffix(f"-{UNDISTURBED}")
    values = json.loads(executor_input)
    inputs = values["inputs"]
    given = json.loads(inputs["parameterValues"]["config"])
    given["run"]["name"] = line.rpartition("/")[2]
    inputs["parameterValues"]["config"] = json.dumps(given)
    outputs = json.dumps(values["outputs"]).replace(f"{here}/", f"{line}/")
    run_id = values["outputs"]["outputFile"].split("/")[-3]
    values["outputs"] = json.loads(outputs.replace(f"/{run_id}/", f"/{UNDISTURBED}/"))
    return json.dumps(values)


def _train(cloud: LocalCloud, config: RunConfig, line: str) -> str:
    """Run the training job again for another line; return why it did not end well."""
    from google.cloud.aiplatform_v1 import JobServiceClient, types

    from rehearsal.vertex.store import has_ended

    disturbed = next(iter(_trainings(cloud, config)), None)
    if disturbed is None or not _has_succeeded(disturbed):
        return "the disturbed training did not succeed"
    given = disturbed.job_spec
    pools = [types.WorkerPoolSpec(pool) for pool in given.worker_pool_specs]
    for pool in pools:
        words = list(pool.container_spec.args)
        place = words.index("--executor-input") + 1
        words[place] = _for_undisturbed(words[place], line)
        pool.container_spec.args = words
    job_spec = {
        "worker_pool_specs": pools,
        # Nobody takes machines away that are paid for in full.
        "scheduling": {"strategy": "STANDARD", "restart_job_on_worker_restart": True},
        "service_account": given.service_account,
        "network": given.network,
    }
    parent, _, _ = disturbed.name.partition("/customJobs/")
    region = parent.rpartition("/")[2]
    # Not gRPC, which reads the certificates that it trusts once a process.
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
