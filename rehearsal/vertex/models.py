"""ModelService: uploads, versions, aliases.

A version is stored under models/ID@NUMBER; a model's own name shows its default version. Uploads end at once.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models,
https://cloud.google.com/vertex-ai/docs/model-registry/model-alias
"""

from __future__ import annotations

import re
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask

from rehearsal.doors.errors import ServiceError, Violation, invalid, not_found, refuse
from rehearsal.doors.messages import plain
from rehearsal.resources import resource_rules
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.listing import page, select
from rehearsal.resources.operations import finished

_ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
_ID = re.compile(r"[a-z0-9_-]{1,63}")
# Of ModelContainerSpec.image_uri: "must identify an image within Artifact Registry or Container Registry".
_IMAGE = re.compile(r"([a-z0-9-]+-docker\.pkg\.dev/[^/\s]+/[^/\s]+|([a-z]+\.)?gcr\.io/[^/\s]+)/\S+")
_DEFAULT = "default"
_CHANGEABLE = ("display_name", "description", "version_description", "labels")


def upload(cloud: CloudState, request: types.UploadModelRequest, caller: Caller) -> Any:
    """Check and store a model, or a new version of one (`parent_model`)."""
    parent = cloud.resolve_name(request.parent, "aiplatform.models.upload")
    model = types.Model(request.model)
    _check(cloud, request, model, parent)
    if request.parent_model:
        name = cloud.resolve_name(request.parent_model, "aiplatform.models.upload").split("@")[0]
        versions = _versions(cloud, name)
        if not versions or not name.startswith(f"{parent}/models/"):
            raise not_found(name)
    else:
        name = f"{parent}/models/{request.model_id or cloud.store.new_id()}"
        versions = _versions(cloud, name)
        if versions:
            raise ServiceError("ALREADY_EXISTS", f"There is a model {name} already: a new version names parent_model")
    model.name = name
    model.version_id = str(max((int(version.version_id) for version in versions), default=0) + 1)
    model.create_time = model.update_time = model.version_create_time = model.version_update_time = cloud.now()
    aliases = list(model.version_aliases)
    if not versions and _DEFAULT not in aliases:
        aliases.append(_DEFAULT)
    model.version_aliases = []
    key = f"{name}@{model.version_id}"
    cloud.store.add(key, model)
    _move_aliases(cloud, name, model.version_id, aliases, ())
    response = types.UploadModelResponse(model=name, model_version_id=model.version_id)
    return finished(cloud, name, response, types.UploadModelOperationMetadata())


def get(cloud: CloudState, request: types.GetModelRequest, caller: Caller) -> types.Model:
    """Return a version: models/ID (the default one), models/ID@NUMBER or models/ID@ALIAS."""
    return types.Model(_find(cloud, request.name, "get"))


def list_(cloud: CloudState, request: types.ListModelsRequest, caller: Caller) -> types.ListModelsResponse:
    """List models, each by its default version, the newest first."""
    parent = cloud.resolve_name(request.parent, "aiplatform.models.list")
    found = [model for model in cloud.store.list(f"{parent}/models/") if _is_default(model)]
    computed = {"model": lambda model: model.name.rpartition("/")[2]}
    found = select(found, types.Model, filter=request.filter, order_by=request.order_by, computed=computed)
    chosen, token = page(found, request.page_size, request.page_token)
    return types.ListModelsResponse(models=chosen, next_page_token=token)


def list_versions(
    cloud: CloudState, request: types.ListModelVersionsRequest, caller: Caller
) -> types.ListModelVersionsResponse:
    """List the versions of a model, the newest first."""
    name = cloud.resolve_name(request.name, "aiplatform.models.list").split("@")[0]
    versions = _versions(cloud, name)
    if not versions:
        raise not_found(name)
    found = select(versions, types.Model, filter=request.filter, order_by=request.order_by)
    chosen, token = page(found, request.page_size, request.page_token)
    return types.ListModelVersionsResponse(models=chosen, next_page_token=token)


def merge_aliases(cloud: CloudState, request: types.MergeVersionAliasesRequest, caller: Caller) -> types.Model:
    """Give a version aliases; "-alias" takes one away."""
    model = _find(cloud, request.name, "update")
    gone = [alias[1:] for alias in request.version_aliases if alias.startswith("-")]
    new = [alias for alias in request.version_aliases if not alias.startswith("-")]
    if wrong := _wrong_aliases([*new, *gone]):
        raise invalid("version_aliases", f"{', '.join(wrong)}: an alias matches {_ALIAS.pattern}")
    if _DEFAULT in gone:
        raise invalid("version_aliases", "default moves to another version, it is not removed")
    _move_aliases(cloud, model.name, model.version_id, new, gone)
    return types.Model(cloud.store.get(f"{model.name}@{model.version_id}"))


def update(cloud: CloudState, request: types.UpdateModelRequest, caller: Caller) -> types.Model:
    """Change what the mask names of a version."""
    model = _find(cloud, request.model.name, "update")
    paths = list(request.update_mask.paths)
    if not paths or any(path.split(".")[0] not in _CHANGEABLE for path in paths):
        raise invalid("update_mask", f"it holds {', '.join(_CHANGEABLE)}")

    def change(model: Any) -> None:
        FieldMask(paths=paths).MergeMessage(plain(request.model), plain(model), True, True)
        model.update_time = model.version_update_time = cloud.now()

    return types.Model(cloud.store.update(f"{model.name}@{model.version_id}", change))


def delete(cloud: CloudState, request: types.DeleteModelRequest, caller: Caller) -> Any:
    """Delete a model with all its versions."""
    name = cloud.resolve_name(request.name, "aiplatform.models.delete")
    versions = _versions(cloud, name)
    if not versions:
        raise not_found(name)
    for version in versions:
        cloud.store.remove(f"{name}@{version.version_id}")
    return finished(cloud, name, Empty(), types.DeleteOperationMetadata())


def delete_version(cloud: CloudState, request: types.DeleteModelVersionRequest, caller: Caller) -> Any:
    """Delete one version, which is not the default one."""
    model = _find(cloud, request.name, "delete")
    if _is_default(model):
        raise ServiceError("FAILED_PRECONDITION", f"{request.name} is the default version: move the alias first")
    cloud.store.remove(f"{model.name}@{model.version_id}")
    return finished(cloud, model.name, Empty(), types.DeleteOperationMetadata())


def _check(cloud: CloudState, request: types.UploadModelRequest, model: types.Model, parent: str) -> None:
    location = parent.rsplit("/", 1)[1]
    found = [
        *resource_rules.check_display_name(model.display_name, "model.display_name"),
        *resource_rules.check_labels(model.labels, "model.labels"),
        *resource_rules.check_key(model.encryption_spec.kms_key_name, location, "model.encryption_spec.kms_key_name"),
        *resource_rules.check_folder(model.artifact_uri, "model.artifact_uri"),
        *resource_rules.check_account(request.service_account, "service_account"),
    ]
    container = model.container_spec
    if not container.image_uri:
        found.append(Violation("model.container_spec.image_uri", "is required."))
    elif _IMAGE.fullmatch(container.image_uri) is None:
        text = f"{container.image_uri!r} must identify an image in Artifact Registry or Container Registry."
        found.append(Violation("model.container_spec.image_uri", text))
    if model.artifact_uri and not found and not cloud.buckets.has_objects(model.artifact_uri):
        found.append(Violation("model.artifact_uri", f"{model.artifact_uri!r} holds no object."))
    for field in ("predict_route", "health_route"):
        route = getattr(container, field)
        if route and not route.startswith("/"):
            found.append(Violation(f"model.container_spec.{field}", f"{route!r} does not begin with /."))
    for port in container.ports:
        if not 1 <= port.container_port <= 65535:
            text = f"{port.container_port} is none of 1 to 65535."
            found.append(Violation("model.container_spec.ports", text))
    if request.model_id and _ID.fullmatch(request.model_id) is None:
        found.append(Violation("model_id", f"{request.model_id!r} does not match {_ID.pattern}."))
    if wrong := _wrong_aliases(model.version_aliases):
        found.append(Violation("model.version_aliases", f"{', '.join(wrong)}: an alias matches {_ALIAS.pattern}."))
    if found:
        raise refuse(found)


def _wrong_aliases(aliases: Any) -> list[str]:
    return [alias for alias in aliases if _ALIAS.fullmatch(alias) is None]


def _move_aliases(cloud: CloudState, name: str, version_id: str, new: Any, gone: Any) -> None:
    """Give a version aliases: each is of one version of a model, so the others lose them."""
    for version in _versions(cloud, name):
        mine = version.version_id == version_id
        kept = [a for a in version.version_aliases if a not in gone or not mine]
        aliases = [*(a for a in kept if a not in new), *(new if mine else ())]
        if aliases != list(version.version_aliases):

            def change(model: Any, aliases: list[str] = aliases) -> None:
                model.version_aliases = aliases

            cloud.store.update(f"{name}@{version.version_id}", change)


def _versions(cloud: CloudState, name: str) -> list[Any]:
    return list(cloud.store.list(f"{name}@"))


def _is_default(model: Any) -> bool:
    return isinstance(model, types.Model) and _DEFAULT in model.version_aliases


def _find(cloud: CloudState, name: str, verb: str) -> Any:
    name, _, wanted = cloud.resolve_name(name, f"aiplatform.models.{verb}").partition("@")
    for version in _versions(cloud, name):
        if (wanted or _DEFAULT) in (version.version_id, *version.version_aliases):
            return version
    raise not_found(f"{name}@{wanted}" if wanted else name)


METHODS = {
    "UploadModel": upload,
    "GetModel": get,
    "ListModels": list_,
    "ListModelVersions": list_versions,
    "MergeVersionAliases": merge_aliases,
    "UpdateModel": update,
    "DeleteModel": delete,
    "DeleteModelVersion": delete_version,
}
