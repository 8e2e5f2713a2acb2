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
from inspection.run.events import find_output
from pipelines.rehearse.rehearsed import UNDISTURBED, Comparison, Rehearsed

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from rehearsal.cloud import LocalCloud

# More than any training that a rehearsal can play.
_LIMIT_S = 3600.0
_LOOK_S = 0.5
# Until the local Vertex has set a job's error.
_ERROR_LIMIT_S = 90.0


def begin_training(cloud: LocalCloud, config: RunConfig, line: str, over: threading.Event) -> Future[str]:
    """Train again as soon as the disturbed training has ended, beside the stages that follow it in the line.

    Args:
        cloud: In which nothing but preemptions of spot machines goes wrong.
        config: What was submitted.
        line: The line that was submitted.
        over: Set when the submission has ended.

    Returns:
        Why the training did not end well; empty: it did.
    """
    from rehearsal.resources.states import has_ended

    future: Future[str] = Future()

    def run() -> None:
        try:
            while not any(has_ended(job) for job in _trainings(cloud, config)) and not over.wait(_LOOK_S):
                continue
            future.set_result(_train(cloud, config, f"{line}-{UNDISTURBED}"))
        except Exception as error:  # noqa: BLE001  # a thread's entry: whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name=UNDISTURBED, daemon=True).start()
    return future


def compare(cloud: LocalCloud, found: Rehearsed, training: Future[str] | None, *, has_rules: bool) -> Comparison:
    """Shard and train again without faults, on machines that stay, and say what came of it.

    Training starts from the shards and the profile of the disturbed run: the profile is a measurement, and another cut
    of the batch would end in other last bits.

    Args:
        cloud: In which nothing goes wrong any more (LocalCloud.calm).
        found: The disturbed run.
        training: The undisturbed training, where it has begun already (`begin_training`).
        has_rules: Whether rules of the buckets could have touched the shards: they are made again then.
    """
    line = f"{found.line}-{UNDISTURBED}"
    shards = _same_shards(found, line) if has_rules else None
    reason = _train(cloud, found.config, line) if training is None else training.result()
    trained = find_output(line, UNDISTURBED, "train")
    if reason or trained is None:
        return Comparison(shards, None, reason or "the undisturbed training has left no result")
    return Comparison(shards, CheckpointManifest.load(trained).parameters_sha256)


def _same_shards(found: Rehearsed, line: str) -> bool:
    """Shard the source on this machine, and compare names, sizes and checksums of all files."""
    resources = found.config.resources.model_copy(update={"beam_runner": "fnapi"})
    config = stage_config(found.config.model_copy(update={"resources": resources}), "shard")
    command = [sys.executable, "-m", "sharding.task", "--line", line, "--run", UNDISTURBED]
    subprocess.run([*command, "--config-json", json.dumps(config)], capture_output=True, check=False)
    made, again = (find_output(*place, "shard") for place in ((found.line, found.run_id), (line, UNDISTURBED)))
    if made is None or again is None:
        return False
    one, other = (ShardManifest.load(uri) for uri in (made, again))
    return (one.fingerprint, one.shards) == (other.fingerprint, other.shards)


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

    from rehearsal.resources.states import has_ended

    disturbed = next(iter(_trainings(cloud, config)), None)
    if disturbed is None or not disturbed.state.name.endswith("_SUCCEEDED"):
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
    if ended.state.name.endswith("_SUCCEEDED"):
        return ""
    told = cloud.store.wait(job, lambda message: message.error.code, _ERROR_LIMIT_S)
    return f"the undisturbed training ended as {ended.state.name}: {told.error.message}"
