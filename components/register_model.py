"""The registration of a served model: an export that is not proven is not uploaded, unless the configuration allows it.

Triton under Vertex AI listens where the environment says, which Vertex AI sets from the port and the routes here
(https://docs.cloud.google.com/vertex-ai/docs/predictions/using-nvidia-triton).
"""

from __future__ import annotations

from typing import Any

from components.task import Task
from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.proof import describe_proof, find_unproven, read_verifications, require_proven
from contracts.result import LINE_LABEL, run_label
from contracts.serving import NO_RELEASE, REPOSITORY, image_of, model_name

SERVING_PORT = 8080
PREDICT_ROUTE, HEALTH_ROUTE = "/predict", "/health"
_TODO = (
    "export with export.runtime=tensorrt on the GPU that serves, run `shardline verify` on a GPU of each target, or "
    "set export.allow_unproven=true"
)


def register(task: Task, config: RunConfig) -> None:
    """Upload an export as a new version of the line's model, where it may be; say so either way.

    Args:
        task: Of the pipeline.
        config: Its keys that registration reads.

    Raises:
        ConfigError, DataError: The export is unreadable or was changed, or no known Triton release loads it.
    """
    uri = storage.normalise(task.input_uri("served") or "")
    document = ExportManifest.load(uri)
    # What is damaged is refused whatever is allowed: an error, not a verdict.
    require_proven(uri, document, allow_unproven=True)
    verifications = read_verifications(uri, document)
    unproven = find_unproven(document, verifications)
    said = f"unproven: {', '.join(unproven)}" if unproven else describe_proof(document, verifications)
    if unproven and not config.export.allow_unproven:
        words = f"{said}; it is not uploaded\n  to do: {_TODO}"
        print(f"register: {storage.display(uri)} is {words}")
        task.set_artifact("registered", {"verdict": "refused", "unproven": ", ".join(unproven)}, uri=uri)
        task.set_artifact("summary", {}, content=f"Not uploaded: {words}\n")
        return
    name = _upload(config, document, uri)
    print(f"register: {name}: {said}")
    metadata = {"verdict": "uploaded", "unproven": ", ".join(unproven), "resourceName": name}
    task.set_artifact("registered", metadata, uri=uri)
    task.set_artifact("summary", {}, content=f"Uploaded as {name}: {said}\n")


def container_spec(image: str, model: str) -> dict[str, Any]:
    """Return how Vertex AI serves the Triton repository, as arguments of `aiplatform.Model.upload`."""
    return {
        "serving_container_image_uri": image,
        "serving_container_command": ["tritonserver"],
        "serving_container_args": [
            "--model-repository=$(AIP_STORAGE_URI)",
            "--allow-vertex-ai=true",
            f"--vertex-ai-default-model={model}",
            "--disable-auto-complete-config",
        ],
        "serving_container_ports": [SERVING_PORT],
        "serving_container_predict_route": PREDICT_ROUTE,
        "serving_container_health_route": HEALTH_ROUTE,
    }


def _upload(config: RunConfig, document: ExportManifest, uri: str) -> str:
    """Return the resource name of the version of this export: one that is there, else a new one."""
    from google.cloud import aiplatform

    cloud = config.cloud
    image = cloud.images.serving or image_of(document)
    if not image:
        raise ConfigError(
            f"the export in {storage.display(uri)} names no image: {NO_RELEASE}",
            allowed="a plan of a TensorRT that a known release of Triton has, or cloud.images.serving",
            todo="set cloud.images.serving to a Triton image with this TensorRT in your Artifact Registry",
        )
    place = {"project": cloud.project, "location": cloud.region}
    found = aiplatform.Model.list(filter=f'display_name="{config.run.name}"', order_by="create_time desc", **place)
    label = {LINE_LABEL: run_label(config.run.name)}
    parent = next((each.resource_name for each in found if label.items() <= each.labels.items()), None)
    description = f"export {document.fingerprint}"
    for version in aiplatform.models.ModelRegistry(parent).list_versions() if parent else ():
        if version.version_description == description:
            return f"{parent}@{version.version_id}"
    model = aiplatform.Model.upload(
        display_name=config.run.name,
        parent_model=parent,
        version_description=description,
        version_aliases=["latest"],
        artifact_uri=storage.join(uri, REPOSITORY),
        labels={**cloud.labels, **label},
        encryption_spec_key_name=cloud.kms_key or None,
        **container_spec(image, model_name(config.task.name)),
        **place,
    )
    return f"{model.resource_name}@{model.version_id}"
