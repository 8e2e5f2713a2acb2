"""`shardline serve MODEL --dry-run`: how an export is served, by Triton here and by an endpoint of Vertex AI.

Nothing is started and nothing is sent. The uploaded model is that of a pipeline (pipelines/graph/vertex.py).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.errors import ConfigError
from contracts.machines import ACCELERATORS, Machine, list_combinations
from contracts.proof import find_unproven, require_proven
from contracts.serving import (
    ONNXRUNTIME_TENSORRT,
    REPOSITORY,
    TENSORRT,
    describe_image,
    docker_command,
    image_of,
    model_name,
)
from pipelines.predict import find_export

# Where no plan asks for another GPU.
_GPU = "sm89"


def describe_serving(model: str, *, dry_run: bool) -> Iterator[str]:
    """Yield the lines to print.

    Args:
        model: Folder of an export, or a run, as for `run_predict`.
        dry_run: That nothing is to be started: what else there is not.

    Raises:
        ConfigError: `dry_run` is false, there is no such export, or its files are not those that were proven.
    """
    if not dry_run:
        raise ConfigError(
            "`shardline serve` starts no server",
            allowed="--dry-run, which prints the command and the requests",
            todo="add --dry-run, and run the command that it prints",
        )
    uri = find_export(model)
    document = ExportManifest.load(uri)
    require_proven(uri, document, allow_unproven=True)
    served, repository = document.served, storage.join(uri, REPOSITORY)
    builder = document.engines[0].builder if document.engines else ""
    image = image_of(document)
    if served is not None:
        yield f"# {served.in_words()}"
    unproven = find_unproven(uri, document)
    yield f"# {'unproven: ' + ', '.join(unproven) if unproven else 'proven'}; no server has loaded it here"
    yield f"# {describe_image(image, builder)}"
    if image is None:
        return
    is_local = storage.is_local(uri)
    folder = str(storage.local_path(repository)) if is_local else "/PATH/TO/triton"
    built_at_load = served is not None and served.runtime == ONNXRUNTIME_TENSORRT
    sha256 = served.sha256 if served is not None and built_at_load else ""
    yield ""
    yield "# Triton on this machine:"
    if not is_local:
        yield shlex.join(["gcloud", "storage", "cp", "--recursive", repository, "/PATH/TO"])
    yield shlex.join(docker_command(image, folder, sha256=sha256))
    yield ""
    yield "# Vertex AI; the image must be a copy of it in your Artifact Registry:"
    artifact_uri = "gs://BUCKET/PATH/triton" if is_local else repository
    if is_local:
        yield shlex.join(["gcloud", "storage", "cp", "--recursive", folder, artifact_uri.rpartition("/")[0]])
    target = document.engines[0].target if builder.partition(" ")[0] == TENSORRT else _GPU
    machine = _find_machine(target)
    if machine is None:
        yield f"# Vertex AI has no machine with a GPU of {target}, for which the plan was built"
        return
    for request, body in _requests(image, artifact_uri, model_name(document.task), machine):
        yield f"POST https://REGION-aiplatform.googleapis.com/v1/{request}"
        yield json.dumps(body, indent=1)


def _requests(image: str, artifact_uri: str, name: str, on: Machine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is posted to Vertex AI, and where: the model, an endpoint, and the model on it."""
    # Here: it imports kfp.
    from pipelines.graph.vertex import container_spec

    place = "projects/PROJECT/locations/REGION"
    spec = container_spec(image, name)
    yield f"{place}/models:upload", {"model": {"displayName": name, "artifactUri": artifact_uri, "containerSpec": spec}}
    yield f"{place}/endpoints", {"displayName": name}
    machine = {
        "machineType": on.type,
        "acceleratorType": on.accelerator_type,
        "acceleratorCount": on.gpus,
    }
    resources = {"machineSpec": machine, "minReplicaCount": 1, "maxReplicaCount": 1}
    deployed = {"model": f"{place}/models/MODEL", "displayName": name, "dedicatedResources": resources}
    yield f"{place}/endpoints/ENDPOINT:deployModel", {"deployedModel": deployed, "trafficSplit": {"0": 100}}


def _find_machine(target: str) -> Machine | None:
    """Return the smallest machine of Vertex AI with a GPU of a compute capability."""
    machines = (each for each in list_combinations() if each.gpus)
    found = (each for each in machines if ACCELERATORS[each.accelerator_type].capability == target)
    return min(found, key=lambda each: (each.gpus, each.vcpus), default=None)
