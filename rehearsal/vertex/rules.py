"""What a custom job has to be: status code and field path as the real service gives them, the wording ours.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec, and the pages named beside the rules.
"""

from __future__ import annotations

import re
from typing import Any

from google.cloud.aiplatform_v1 import types

from rehearsal.doors.errors import Violation, refuse
from rehearsal.resources import resource_rules
from rehearsal.resources.cloud_state import CloudState
from rehearsal.vertex.machines import KINDS, find_fault

_MAX_POOLS = 4
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/DiskSpec
_MIN_DISK_GB, _MAX_DISK_GB, _DISK_TYPES = 100, 64000, ("pd-ssd", "pd-standard", "hyperdisk-balanced")
_MAX_ENV = 100
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TENSORBOARD = re.compile(r"projects/[^/]+/locations/([^/]+)/tensorboards/\d+")
_STRATEGY: Any = types.Scheduling.Strategy


def check_custom_job(cloud: CloudState, job: types.CustomJob, parent: str) -> None:
    """Check a custom job that is to be created below `parent`.

    Raises:
        ServiceError: INVALID_ARGUMENT with every field that is wrong.
    """
    location = parent.rsplit("/", 1)[1]
    spec = job.job_spec
    found = [
        *resource_rules.check_display_name(job.display_name, "display_name"),
        *resource_rules.check_labels(job.labels, "labels"),
        *resource_rules.check_key(job.encryption_spec.kms_key_name, location, "encryption_spec.kms_key_name"),
        *resource_rules.check_network(spec.network, "job_spec.network"),
        *resource_rules.check_account(spec.service_account, "job_spec.service_account"),
        *resource_rules.check_folder(
            spec.base_output_directory.output_uri_prefix, "job_spec.base_output_directory.output_uri_prefix"
        ),
        *_check_pools(spec),
        *_check_scheduling(spec.scheduling),
        *_check_tensorboard(spec, location),
    ]
    if spec.network and "psc_interface_config" in spec:
        found.append(Violation("job_spec.psc_interface_config", "excludes job_spec.network: one of the two is set."))
    if found:
        raise refuse(found)


def _check_pools(spec: Any) -> list[Violation]:
    field = "job_spec.worker_pool_specs"
    pools = list(spec.worker_pool_specs)
    if not pools:
        return [Violation(field, "is required.")]
    found = []
    if len(pools) > _MAX_POOLS:
        found.append(Violation(field, f"{len(pools)} pools: {_MAX_POOLS} is the most."))
    for number, pool in enumerate(pools):
        # An empty pool keeps a place, as that of the reduction server.
        if pool == types.WorkerPoolSpec() and number > 0:
            continue
        found += _check_pool(pool, number, f"{field}[{number}]", spec.scheduling.strategy)
    return found


def _check_pool(pool: Any, number: int, field: str, strategy: Any) -> list[Violation]:
    found = []
    if number == 0 and pool.replica_count != 1:
        text = f"is {pool.replica_count}: the primary pool has one replica, all others are in worker_pool_specs[1]."
        found.append(Violation(f"{field}.replica_count", text))
    elif pool.replica_count < 1:
        found.append(Violation(f"{field}.replica_count", f"is {pool.replica_count}: 1 at least."))
    machine = pool.machine_spec
    gpu = types.AcceleratorType(machine.accelerator_type).name if machine.accelerator_type else ""
    fault = find_fault(machine.machine_type, gpu, machine.accelerator_count)
    kind = KINDS.get(machine.machine_type)
    if fault is not None:
        found.append(Violation(f"{field}.machine_spec.{fault[0]}", fault[1]))
    elif kind is not None and kind.spot_only and strategy not in (_STRATEGY.SPOT, _STRATEGY.FLEX_START):
        text = f"{machine.machine_type} is given with SPOT and FLEX_START only."
        found.append(Violation(f"{field}.machine_spec.machine_type", text))
    if "container_spec" in pool:
        container = pool.container_spec
        if not container.image_uri:
            found.append(Violation(f"{field}.container_spec.image_uri", "is required."))
        if len(container.env) > _MAX_ENV:
            found.append(Violation(f"{field}.container_spec.env", f"{len(container.env)}: {_MAX_ENV} is the most."))
        for variable in container.env:
            if _ENV_NAME.fullmatch(variable.name) is None:
                found.append(Violation(f"{field}.container_spec.env", f"{variable.name!r} is no variable's name."))
    elif "python_package_spec" not in pool:
        found.append(Violation(field, "container_spec or python_package_spec is required."))
    return found + _check_disk(pool.disk_spec, field, () if kind is None else kind.disks)


def _check_disk(disk: Any, field: str, allowed: tuple[str, ...]) -> list[Violation]:
    found = []
    if disk.boot_disk_type:
        name = f"{field}.disk_spec.boot_disk_type"
        if disk.boot_disk_type not in _DISK_TYPES:
            found.append(Violation(name, f"{disk.boot_disk_type!r} is none of {', '.join(_DISK_TYPES)}."))
        elif allowed and disk.boot_disk_type not in allowed:
            found.append(Violation(name, f"{disk.boot_disk_type!r} is not for this machine: {', '.join(allowed)}."))
    size = disk.boot_disk_size_gb
    if size and not _MIN_DISK_GB <= size <= _MAX_DISK_GB:
        text = f"is {size}: {_MIN_DISK_GB} to {_MAX_DISK_GB} GB."
        found.append(Violation(f"{field}.disk_spec.boot_disk_size_gb", text))
    return found


def _check_scheduling(scheduling: Any) -> list[Violation]:
    found = []
    field = "job_spec.scheduling"
    if "timeout" in scheduling and scheduling.timeout.total_seconds() <= 0:
        found.append(Violation(f"{field}.timeout", "is not positive."))
    if "max_wait_duration" in scheduling:
        if scheduling.strategy != _STRATEGY.FLEX_START:
            found.append(Violation(f"{field}.max_wait_duration", "is set with strategy FLEX_START only."))
        elif scheduling.max_wait_duration.total_seconds() < 0:
            found.append(Violation(f"{field}.max_wait_duration", "is negative."))
    if scheduling.disable_retries and scheduling.restart_job_on_worker_restart:
        text = "is set beside disable_retries, which forbids it."
        found.append(Violation(f"{field}.restart_job_on_worker_restart", text))
    return found


def _check_tensorboard(spec: Any, location: str) -> list[Violation]:
    """https://cloud.google.com/vertex-ai/docs/experiments/tensorboard-training."""
    if not spec.tensorboard:
        return []
    found = []
    match = _TENSORBOARD.fullmatch(spec.tensorboard)
    if match is None:
        text = f"{spec.tensorboard!r} is not projects/P/locations/L/tensorboards/NUMBER."
        found.append(Violation("job_spec.tensorboard", text))
    elif match.group(1) != location:
        found.append(Violation("job_spec.tensorboard", f"is in {match.group(1)}: it has to be in {location}."))
    if not spec.service_account:
        found.append(Violation("job_spec.service_account", "is required where tensorboard is set."))
    if not spec.base_output_directory.output_uri_prefix:
        found.append(Violation("job_spec.base_output_directory", "is required where tensorboard is set."))
    return found
