"""Registration of a served model: upload to Vertex AI's model registry, and the alias `production`.

An unproven export is not uploaded, unless export.allow_unproven. The gate (components/gate.py) compares an export with
the version that has the alias, and moves the aliases `production` and `default` to it if it is not worse.

Vertex AI passes the port and the routes to Triton by environment variables
(https://docs.cloud.google.com/vertex-ai/docs/predictions/using-nvidia-triton).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from components.gate import decide, read_production, record_decision, run_to_end
from components.task import Task
from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError, TryAgain
from contracts.proof import proven_on, read_verification, require_proven, verdict
from contracts.result import LINE_LABEL, RUN_LABEL, run_label
from contracts.serving import NO_RELEASE, REPOSITORY, TENSORRT_RTX, image_of, model_name

if TYPE_CHECKING:
    from google.cloud import aiplatform

ALIAS = "production"
SERVING_PORT = 8080
PREDICT_ROUTE, HEALTH_ROUTE = "/predict", "/health"


def register(task: Task, config: RunConfig) -> None:
    """Upload a proven export as a version of the line's model, and decide whether it goes into production.

    Args:
        task: The task of the pipeline.
        config: The keys of the configuration that registration reads.

    Raises:
        ConfigError, DataError: The export is unreadable, was changed or has no Triton repository, or no known Triton
            release loads it.
        ShardlineError: The comparison with production failed.
    """
    export, shards = (storage.normalise(task.input_uri(name) or "") for name in ("served", "shards"))
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    document = ExportManifest.load(export)
    # A damaged export is an error, also with allow_unproven.
    require_proven(export, document, allow_unproven=True)
    if document.runtime == TENSORRT_RTX:
        raise ConfigError(
            f"the export in {storage.display(export)} has no Triton repository (export.runtime: {TENSORRT_RTX})",
            allowed="an export of runtime tensorrt or onnx",
            todo="set export.runtime to tensorrt or onnx, or register.upload to false",
        )
    recorded = read_production(line)
    current, resource, registry = None, "", None
    if config.export.allow_unproven or proven_on(document, read_verification(export, document)):
        registry, version = _find_or_upload(config, document, export, task.run_id)
        resource = f"{registry.model_resource_name}@{version}"
        # If the alias was removed, the line's document decides.
        current = _find_production(registry) or (recorded.export_uri(line) if recorded is not None else None)
    decided = recorded.decided if recorded is not None else {}
    decision = decide(config, export, shards, current=current, decided=decided, run=run_to_end)
    if registry is not None and decision["verdict"] == "production" and current != export:
        if (_find_production(registry) or current) != current:
            raise TryAgain("production has changed meanwhile: the next try compares again")
        move_alias(resource)
    record_decision(config, line, task.run_id, document.fingerprint, decision)
    print(f"register: {resource or storage.display(export)}: {decision['verdict']}: {decision['reason']}")
    metadata = {**decision, **({"resourceName": resource} if resource else {})}
    task.set_artifact("registered", metadata, uri=export)
    uploaded = f"Uploaded as {resource}." if resource else "Not uploaded."
    task.set_artifact("summary", {}, content=f"{uploaded}\n\n**{decision['verdict']}**: {decision['reason']}\n")


def move_alias(resource: str) -> None:
    """Put a version into production: set the aliases `production` and `default` (served if no version is given).

    Args:
        resource: projects/P/locations/REGION/models/ID@VERSION.
    """
    from google.cloud import aiplatform

    model, _, version = resource.partition("@")
    project, region = model.split("/")[1:4:2]
    registry = aiplatform.models.ModelRegistry(model, location=region, project=project)
    registry.add_version_aliases([ALIAS, "default"], version)


def container_spec(image: str, model: str) -> dict[str, Any]:
    """Return the arguments of `aiplatform.Model.upload` for serving the Triton repository."""
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


def _find_or_upload(
    config: RunConfig, document: ExportManifest, uri: str, run_id: str
) -> tuple[aiplatform.models.ModelRegistry, str]:
    """Return the versions of the line's model, and the existing or new version of this export."""
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
    label = {LINE_LABEL: run_label(config.run.name)}
    models = aiplatform.Model.list(filter=f'display_name="{config.run.name}"', order_by="create_time desc", **place)
    parent = next((entry.resource_name for entry in models if label.items() <= entry.labels.items()), None)
    identity = f"export {document.fingerprint}:"
    if parent is not None:
        registry = aiplatform.models.ModelRegistry(parent, **place)
        for version in registry.list_versions():
            if version.version_description.startswith(identity):
                return registry, version.version_id
    values = ", ".join(f"{name} {value:.4f}" for name, value in document.headline_values.items())
    proof = verdict(document, read_verification(uri, document))
    model = aiplatform.Model.upload(
        display_name=config.run.name,
        parent_model=parent,
        # The gate decides what is served where no version is named.
        is_default_version=parent is None,
        version_aliases=["latest"],
        version_description=f"{identity} {proof}; {document.headline.metric}: {values}",
        artifact_uri=storage.join(uri, REPOSITORY),
        labels={**cloud.labels, **label, RUN_LABEL: run_label(run_id)},
        encryption_spec_key_name=cloud.kms_key or None,
        **container_spec(image, model_name(config.task.name)),
        **place,
    )
    return aiplatform.models.ModelRegistry(model.resource_name, **place), model.version_id


def _find_production(registry: aiplatform.models.ModelRegistry) -> str | None:
    """Return the URI of the export whose version has the alias, or None."""
    version = next((candidate for candidate in registry.list_versions() if ALIAS in candidate.version_aliases), None)
    if version is None:
        return None
    return str(registry.get_model(version.version_id).uri).removesuffix(f"/{REPOSITORY}")
