"""What a pipeline job has to be: its spec parses, its parameters are the spec's, its root is in a bucket.

The spec travels as a Struct, so nothing but this looks for typing errors in it: it is parsed into PipelineSpec, and
each executor (a Struct within it) into ExecutorSpec, with unknown names refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format

from contracts.canonical import canonical
from rehearsal.doors.errors import ServiceError, Violation, refuse
from rehearsal.doors.messages import plain
from rehearsal.pipelines.spec import PLATFORM_FIELDS, find_refusals
from rehearsal.resources import resource_rules
from rehearsal.resources.cloud_state import CloudState

_NOT_PLAYED = "the rehearsal does not play"
_PIPELINE_NAME = re.compile(r"[a-z0-9][-a-z0-9]{0,127}")


def check_pipeline_job(
    cloud: CloudState, job: types.PipelineJob, parent: str, field: str = "pipeline_job", *, named: bool = False
) -> None:
    """Check a pipeline job that is to be created below `parent`.

    Args:
        cloud: The local cloud.
        job: The job.
        parent: projects/NUMBER/locations/LOCATION.
        field: Where it stands in the request.
        named: Whether a display name is required: it is not where a schedule creates the job.

    Raises:
        ServiceError: INVALID_ARGUMENT with every field that is wrong; UNIMPLEMENTED with what Vertex AI may take and
            the rehearsal does not play.
    """
    location = parent.rsplit("/", 1)[1]
    config = job.runtime_config
    found = [
        *(resource_rules.check_display_name(job.display_name, f"{field}.display_name") if named else []),
        *resource_rules.check_labels(job.labels, f"{field}.labels"),
        *resource_rules.check_key(job.encryption_spec.kms_key_name, location, f"{field}.encryption_spec.kms_key_name"),
        *resource_rules.check_network(job.network, f"{field}.network"),
        *resource_rules.check_account(job.service_account, f"{field}.service_account"),
        *resource_rules.check_folder(
            config.gcs_output_directory, f"{field}.runtime_config.gcs_output_directory", required=True
        ),
    ]
    if job.network and "psc_interface_config" in job:
        found.append(Violation(f"{field}.psc_interface_config", f"excludes {field}.network: one of the two is set."))
    spec = to_values(plain(job).pipeline_spec)
    if any(spec.get(name) for name in PLATFORM_FIELDS):
        raise ServiceError("UNIMPLEMENTED", f"{field}.pipeline_spec: {_NOT_PLAYED} {'; '.join(find_refusals(spec))}")
    if not spec:
        found.append(Violation(f"{field}.pipeline_spec", "is required: a template's URI alone is not resolved here."))
    else:
        found += _check_spec(spec, f"{field}.pipeline_spec")
        values = {name: to_values(value) for name, value in plain(config).parameter_values.items()}
        found += _check_parameters(spec, values, f"{field}.runtime_config.parameter_values")
    if found:
        raise refuse(found)
    if config.failure_policy == types.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST:
        raise ServiceError("UNIMPLEMENTED", f"{field}.runtime_config.failure_policy: {_NOT_PLAYED} failing fast")
    if refused := find_refusals(spec):
        raise ServiceError("UNIMPLEMENTED", f"{field}.pipeline_spec: {_NOT_PLAYED} {'; '.join(refused)}")


def to_values(struct: Any) -> Any:
    """Return the JSON value of a Struct or Value, whole numbers as integers: the wire has doubles only."""
    return canonical(json_format.MessageToDict(struct))


def _check_spec(spec: dict[str, Any], field: str) -> list[Violation]:
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    found = []
    try:
        json_format.ParseDict(spec, messages.PipelineSpec())
    except json_format.ParseError as error:
        found.append(Violation(field, str(error)))
    name = _at(spec, "pipelineInfo", "name")
    if not isinstance(name, str) or _PIPELINE_NAME.fullmatch(name) is None:
        found.append(Violation(f"{field}.pipelineInfo.name", f"{name!r} does not match {_PIPELINE_NAME.pattern}."))
    executors = _at(spec, "deploymentSpec", "executors")
    if not isinstance(executors, dict) or not executors:
        return [*found, Violation(f"{field}.deploymentSpec.executors", "is required.")]
    for label, executor in executors.items():
        where = f"{field}.deploymentSpec.executors[{label}]"
        try:
            json_format.ParseDict(executor, messages.PipelineDeploymentConfig.ExecutorSpec())
        except json_format.ParseError as error:
            found.append(Violation(where, str(error)))
        else:
            if "container" in executor and not executor["container"].get("image"):
                found.append(Violation(f"{where}.container.image", "is required."))
    return found + list(_missing(spec, executors, field))


def _missing(spec: dict[str, Any], executors: Mapping[str, Any], field: str) -> Iterator[Violation]:
    """Yield what is spoken of in the spec and not in it."""
    components = spec.get("components") if isinstance(spec.get("components"), dict) else {}
    assert components is not None
    for label, component in [("root", spec.get("root")), *components.items()]:
        if not isinstance(component, dict):
            yield Violation(f"{field}.{label}", "is required.")
            continue
        executor = component.get("executorLabel")
        if executor is not None and executor not in executors:
            yield Violation(f"{field}.components[{label}].executorLabel", f"there is no executor {executor!r}.")
        for task, body in (_at(component, "dag", "tasks") or {}).items():
            name = _at(body, "componentRef", "name")
            if name not in components:
                where = f"{field}.components[{label}].dag.tasks[{task}].componentRef.name"
                yield Violation(where, f"there is no component {name!r}.")


def _check_parameters(spec: dict[str, Any], values: Mapping[str, Any], field: str) -> list[Violation]:
    wanted = _at(spec, "root", "inputDefinitions", "parameters") or {}
    found = [
        Violation(f"{field}[{name}]", f"the pipeline has no parameter {name!r}: {', '.join(wanted) or 'none at all'}.")
        for name in values
        if name not in wanted
    ]
    for name, definition in wanted.items():
        if name in values:
            fault = _type_fault(definition.get("parameterType", ""), values[name])
            if fault:
                found.append(Violation(f"{field}[{name}]", fault))
        elif not definition.get("isOptional") and "defaultValue" not in definition:
            found.append(Violation(f"{field}[{name}]", "is required: it has no default value."))
    return found


_TYPES: dict[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}


def _type_fault(kind: str, value: Any) -> str:
    wanted = _TYPES.get(kind)
    if wanted is None or (isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool))):
        return ""
    return f"{value!r} is no {kind}."


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
