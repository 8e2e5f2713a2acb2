"""Validation of resources that clients create, with the real service's status codes and field paths.

Machine types, accelerators and disks are not checked here: `shardline plan` checks them (contracts/machines.py).
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec, .../projects.locations.pipelineJobs
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format

from contracts.canonical import canonical
from rehearsal.errors import ServiceError, Violation, invalid_arguments
from rehearsal.pipelines.spec import find_unsupported
from rehearsal.pipelines.values import TaskFailed, fit
from rehearsal.servers.messages import plain

# Letters of any script are allowed, upper case is not: https://cloud.google.com/resource-manager/docs/labels-overview
_LABEL_KEY, _LABEL_VALUE = re.compile(r"(?=[^\W\d_])[\w-]{1,63}"), re.compile(r"[\w-]{0,63}")
_MAX_DISPLAY_NAME, _MAX_POOLS = 128, 4
_FOLDER = re.compile(r"gs://[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9](/.*)?")


def check_resource(message: Any, field: str, *, is_named: bool = True) -> list[Violation]:
    """Return the violations of a resource's display name and labels; `field` is its path with a final dot."""
    violations = []
    if is_named and not 1 <= len(message.display_name) <= _MAX_DISPLAY_NAME:
        violations.append(Violation(f"{field}display_name", f"1 to {_MAX_DISPLAY_NAME} characters are required."))
    for key, value in message.labels.items():
        is_valid = _LABEL_KEY.fullmatch(key) is not None and _LABEL_VALUE.fullmatch(value) is not None
        if not is_valid or f"{key}{value}".lower() != f"{key}{value}":
            text = f"{key!r}: {value!r}: a lower-case letter, then up to 62 of lower case, digits, _ and -."
            violations.append(Violation(f"{field}labels[{key}]", text))
    return violations


def _check_folder(uri: str, field: str) -> list[Violation]:
    return [] if _FOLDER.fullmatch(uri) else [Violation(field, f"{uri!r} is not gs://BUCKET/PATH.")]


def check_custom_job(job: types.CustomJob) -> None:
    """Check a new custom job.

    Raises:
        ServiceError: INVALID_ARGUMENT with all invalid fields.
    """
    violations = [*check_resource(job, ""), *_check_pools(job.job_spec.worker_pool_specs)]
    if folder := job.job_spec.base_output_directory.output_uri_prefix:
        violations += _check_folder(folder, "job_spec.base_output_directory.output_uri_prefix")
    if violations:
        raise invalid_arguments(violations)


def _check_pools(pools: Any) -> Iterator[Violation]:
    field = "job_spec.worker_pool_specs"
    if not 1 <= len(pools) <= _MAX_POOLS:
        yield Violation(field, f"{len(pools)} pools: 1 to {_MAX_POOLS} are allowed.")
    for number, pool in enumerate(pools):
        # Empty pools are placeholders, e.g. for the reduction server.
        if pool == types.WorkerPoolSpec() and number > 0:
            continue
        if (number == 0 and pool.replica_count != 1) or pool.replica_count < 1:
            text = f"is {pool.replica_count}: must be 1 in the first pool and at least 1 in the others."
            yield Violation(f"{field}[{number}].replica_count", text)
        if not pool.machine_spec.machine_type:
            yield Violation(f"{field}[{number}].machine_spec.machine_type", "is required.")
        if not pool.container_spec.image_uri:
            yield Violation(f"{field}[{number}].container_spec.image_uri", "is required.")


def check_pipeline_job(job: types.PipelineJob, field: str = "pipeline_job", *, is_named: bool = True) -> None:
    """Check a new pipeline job.

    The specification is sent as a Struct, so it is parsed here into PipelineSpec, and each executor into ExecutorSpec;
    unknown names are errors. The job of a schedule needs no display name.

    Raises:
        ServiceError: INVALID_ARGUMENT with all invalid fields; UNIMPLEMENTED with valid fields that a rehearsal does
            not support.
    """
    config = job.runtime_config
    violations = [
        *check_resource(job, f"{field}.", is_named=is_named),
        *_check_folder(config.gcs_output_directory, f"{field}.runtime_config.gcs_output_directory"),
    ]
    spec = to_values(plain(job).pipeline_spec)
    if not spec:
        text = "is required: a template's URI alone is not resolved here."
        violations.append(Violation(f"{field}.pipeline_spec", text))
    else:
        violations += _check_spec(spec, f"{field}.pipeline_spec")
        values = {name: to_values(value) for name, value in plain(config).parameter_values.items()}
        violations += _check_parameters(spec, values, f"{field}.runtime_config.parameter_values")
    if violations:
        raise invalid_arguments(violations)
    unsupported = find_unsupported(spec)
    if config.failure_policy == types.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST:
        unsupported.append("runtime_config.failure_policy: fail fast")
    if unsupported:
        raise ServiceError("UNIMPLEMENTED", f"{field}: a rehearsal does not execute {'; '.join(unsupported)}")


def to_values(struct: Any) -> Any:
    """Return the JSON value of a Struct or Value, whole numbers as integers (a Struct has only doubles)."""
    return canonical(json_format.MessageToDict(struct))


def _check_spec(spec: dict[str, Any], field: str) -> Iterator[Violation]:
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    try:
        message = json_format.ParseDict(spec, messages.PipelineSpec())
    except json_format.ParseError as error:
        yield Violation(field, str(error))
        return
    for label, executor in json_format.MessageToDict(message.deployment_spec).get("executors", {}).items():
        try:
            json_format.ParseDict(executor, messages.PipelineDeploymentConfig.ExecutorSpec())
        except json_format.ParseError as error:
            yield Violation(f"{field}.deploymentSpec.executors[{label}]", str(error))


def _check_parameters(spec: dict[str, Any], values: Mapping[str, Any], field: str) -> Iterator[Violation]:
    definitions = spec.get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    for name in values.keys() - definitions.keys():
        yield Violation(f"{field}[{name}]", f"the pipeline has no parameter {name!r}: {', '.join(definitions)}.")
    for name, definition in definitions.items():
        if name not in values:
            if not definition.get("isOptional") and "defaultValue" not in definition:
                yield Violation(f"{field}[{name}]", "is required: it has no default value.")
            continue
        value, kind = values[name], definition.get("parameterType", "")
        if kind == "STRING" and not isinstance(value, str):
            yield Violation(f"{field}[{name}]", f"{value!r} is no {kind}.")
            continue
        try:
            fit(name, value, kind)
        except TaskFailed as error:
            yield Violation(f"{field}[{name}]", str(error))
