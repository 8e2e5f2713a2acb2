"""ModelService: uploads, versions, aliases.

Versions are stored as models/ID@NUMBER; models/ID is the default version. Uploads finish immediately.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.models,
https://cloud.google.com/vertex-ai/docs/model-registry/model-alias
"""

from __future__ import annotations

import threading
from typing import Any

from google.cloud.aiplatform_v1 import types

from rehearsal.errors import ServiceError, Violation, invalid_argument, invalid_arguments, not_found
from rehearsal.vertex.checks import check_resource
from rehearsal.vertex.listing import page, select
from rehearsal.vertex.small_services import finish_operation
from rehearsal.vertex.state import Caller, CloudState

_DEFAULT = "default"
_UPLOADING = threading.Lock()


def upload(cloud: CloudState, request: types.UploadModelRequest, caller: Caller) -> Any:
    """Check and store a model, or a new version of `parent_model`."""
    parent = cloud.resolve_name(request.parent, "aiplatform.models.upload")
    model = types.Model(request.model)
    _check(cloud, model)
    # Version number and aliases are read, then written: serialised.
    with _UPLOADING:
        if request.parent_model:
            name = cloud.resolve_name(request.parent_model, "aiplatform.models.upload").split("@")[0]
            versions = _versions(cloud, name)
            if not versions or not name.startswith(f"{parent}/models/"):
                raise not_found(name)
        else:
            name = f"{parent}/models/{request.model_id or cloud.store.new_id()}"
            versions = _versions(cloud, name)
            if versions:
                text = f"There is a model {name} already: a new version names parent_model"
                raise ServiceError("ALREADY_EXISTS", text)
        model.name = name
        model.version_id = str(max((int(version.version_id) for version in versions), default=0) + 1)
        model.create_time = model.update_time = model.version_create_time = model.version_update_time = cloud.now()
        aliases = {*model.version_aliases, *([] if versions else [_DEFAULT])}
        model.version_aliases = []
        cloud.store.add(f"{name}@{model.version_id}", model)
        _move_aliases(cloud, name, model.version_id, aliases, set())
    response = types.UploadModelResponse(model=name, model_version_id=model.version_id)
    return finish_operation(cloud, name, response, types.UploadModelOperationMetadata())


def get(cloud: CloudState, request: types.GetModelRequest, caller: Caller) -> types.Model:
    """Return a version: models/ID (the default one), models/ID@NUMBER or models/ID@ALIAS."""
    return types.Model(_find(cloud, request.name, "get"))


def list_(cloud: CloudState, request: types.ListModelsRequest, caller: Caller) -> types.ListModelsResponse:
    """List models, each by its default version, the newest first."""
    parent = cloud.resolve_name(request.parent, "aiplatform.models.list")
    versions = cloud.store.list(f"{parent}/models/", types.Model)
    models = [model for model in versions if _DEFAULT in model.version_aliases]
    models = select(models, types.Model, request.filter, request.order_by)
    models, token = page(models, request.page_size, request.page_token, lambda model: str(model.name))
    return types.ListModelsResponse(models=models, next_page_token=token)


def list_versions(
    cloud: CloudState, request: types.ListModelVersionsRequest, caller: Caller
) -> types.ListModelVersionsResponse:
    """List the versions of a model, the newest first."""
    name = cloud.resolve_name(request.name, "aiplatform.models.list").split("@")[0]
    versions = _versions(cloud, name)
    if not versions:
        raise not_found(name)
    versions = select(versions, types.Model, request.filter, request.order_by)
    versions, token = page(versions, request.page_size, request.page_token, lambda model: str(model.version_id))
    return types.ListModelVersionsResponse(models=versions, next_page_token=token)


def merge_aliases(cloud: CloudState, request: types.MergeVersionAliasesRequest, caller: Caller) -> types.Model:
    """Add aliases to a version; "-alias" removes one."""
    model = _find(cloud, request.name, "update")
    removed = {alias[1:] for alias in request.version_aliases if alias.startswith("-")}
    added = {alias for alias in request.version_aliases if not alias.startswith("-")}
    if _DEFAULT in removed:
        raise invalid_argument("version_aliases", "default moves to another version, it is not removed")
    _move_aliases(cloud, model.name, model.version_id, added, removed)
    return types.Model(cloud.store.get(f"{model.name}@{model.version_id}"))


def _check(cloud: CloudState, model: types.Model) -> None:
    violations = check_resource(model, "model.")
    if not model.container_spec.image_uri:
        violations.append(Violation("model.container_spec.image_uri", "is required."))
    if model.artifact_uri and not violations and not cloud.has_objects(model.artifact_uri):
        violations.append(Violation("model.artifact_uri", f"{model.artifact_uri!r} holds no object."))
    if violations:
        raise invalid_arguments(violations)


def _move_aliases(cloud: CloudState, name: str, version_id: str, added: set[str], removed: set[str]) -> None:
    """Move aliases to a version: an alias belongs to one version of a model."""
    for version in _versions(cloud, name):
        is_target = version.version_id == version_id
        lost = added | removed if is_target else added
        aliases = [alias for alias in version.version_aliases if alias not in lost]
        aliases += sorted(added) if is_target else []

        def change(model: Any, aliases: list[str] = aliases) -> None:
            model.version_aliases = aliases

        cloud.store.update(f"{name}@{version.version_id}", change)


def _versions(cloud: CloudState, name: str) -> list[Any]:
    return list(cloud.store.list(f"{name}@"))


def _find(cloud: CloudState, name: str, verb: str) -> Any:
    name, _, version_or_alias = cloud.resolve_name(name, f"aiplatform.models.{verb}").partition("@")
    for version in _versions(cloud, name):
        if (version_or_alias or _DEFAULT) in (version.version_id, *version.version_aliases):
            return version
    raise not_found(f"{name}@{version_or_alias}" if version_or_alias else name)


METHODS = {
    "UploadModel": upload,
    "GetModel": get,
    "ListModels": list_,
    "ListModelVersions": list_versions,
    "MergeVersionAliases": merge_aliases,
}
