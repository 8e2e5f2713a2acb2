"""Quotas: how many GPUs and vCPUs jobs may hold at a time, and Cloud Quotas' view of it.

The names of the metrics are patterns that messages of the service show (custom_model_training_nvidia_l4_gpus,
custom_model_training_preemptible_nvidia_h100_gpus); those of other GPUs are derived from them.

https://cloud.google.com/vertex-ai/docs/quotas, https://cloud.google.com/docs/quotas/api-overview
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.cloud.aiplatform_v1 import types
from google.cloud.cloudquotas_v1 import types as quota_types

from rehearsal.doors.errors import ServiceError, invalid, not_found
from rehearsal.resources.listing import page
from rehearsal.vertex.machines import KINDS

if TYPE_CHECKING:
    from rehearsal.resources.cloud_state import Caller, CloudState

SERVICE = "aiplatform.googleapis.com"
_PREFIX = f"{SERVICE}/custom_model_training_"
_STRATEGY: Any = types.Scheduling.Strategy
# What a GPU is called in a metric, where that is not its enum's name in lower case.
_METRIC_NAMES = {
    "NVIDIA_TESLA_A100": "nvidia_a100",
    "NVIDIA_H100_80GB": "nvidia_h100",
    "NVIDIA_H100_MEGA_80GB": "nvidia_h100_mega",
    "NVIDIA_H200_141GB": "nvidia_h200",
    "NVIDIA_TESLA_P4": "nvidia_p4",
    "NVIDIA_TESLA_P100": "nvidia_p100",
    "NVIDIA_TESLA_T4": "nvidia_t4",
    "NVIDIA_TESLA_V100": "nvidia_v100",
}


class Quotas:
    """Limits by metric and region, and which job holds how much; what is not named has no limit.

    A job that needs more than the whole limit is refused; one that needs more than what is left stays QUEUED
    (https://cloud.google.com/vertex-ai/docs/quotas).

    Args:
        limits: Metric (with or without aiplatform.googleapis.com/ before it) -> region -> limit.
    """

    def __init__(self, limits: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.limits = {
            metric if metric.startswith(SERVICE) else f"{SERVICE}/{metric}": dict(regions)
            for metric, regions in (limits or {}).items()
        }
        self._held: dict[str, tuple[str, dict[str, int]]] = {}
        self.struck: dict[str, str] = {}
        """By job, or its display name where it was refused: what it met, in words."""
        self._lock = threading.Lock()

    def check(self, job: Any, region: str) -> None:
        """Refuse a job that needs more than the limit of its region.

        Raises:
            ServiceError: RESOURCE_EXHAUSTED naming the metric.
        """
        if exceeded := self._find_exceeded(needs(job), region, {}):
            limit = self.limits[exceeded[0]][region]
            self.struck[job.display_name] = f"{exceeded[0]} in {region}: {job.display_name} was refused"
            raise ServiceError(
                "RESOURCE_EXHAUSTED",
                f"The following quota metrics exceed quota limits: {', '.join(exceeded)}",
                quota={"quota_metric": exceeded[0], "quota_limit_value": str(limit), "region": region},
            )

    def take(self, name: str, job: Any, region: str) -> bool:
        """Let a job hold what it needs, if as much is left; False: it is not."""
        wanted = needs(job)
        with self._lock:
            held: dict[str, int] = {}
            for place, amounts in self._held.values():
                for metric, amount in amounts.items() if place == region else ():
                    held[metric] = held.get(metric, 0) + amount
            if exceeded := self._find_exceeded(wanted, region, held):
                self.struck[name] = f"{exceeded[0]} in {region}: {job.display_name} was queued"
                return False
            self._held[name] = (region, wanted)
            return True

    def give_back(self, name: str) -> None:
        """Let go of what a job holds; one that holds nothing is let alone."""
        with self._lock:
            self._held.pop(name, None)

    def _find_exceeded(self, wanted: Mapping[str, int], region: str, held: Mapping[str, int]) -> list[str]:
        """Return the metrics of which there is not enough."""
        return [
            metric
            for metric, amount in wanted.items()
            if (limit := self.limits.get(metric, {}).get(region)) is not None and held.get(metric, 0) + amount > limit
        ]


def needs(job: Any) -> dict[str, int]:
    """Return how much of which metric a custom job holds while it has not ended."""
    spot = job.job_spec.scheduling.strategy in (_STRATEGY.SPOT, _STRATEGY.FLEX_START)
    prefix = _PREFIX + ("preemptible_" if spot else "")
    found: dict[str, int] = {}
    for pool in job.job_spec.worker_pool_specs:
        machine = pool.machine_spec
        if machine.accelerator_type:
            gpu = types.AcceleratorType(machine.accelerator_type).name
            metric = f"{prefix}{_METRIC_NAMES.get(gpu, gpu.lower())}_gpus"
            found[metric] = found.get(metric, 0) + machine.accelerator_count * pool.replica_count
        if machine.machine_type in KINDS:
            family = machine.machine_type.split("-")[0]
            metric = f"{prefix}cpus" if family in ("n1", "e2") else f"{prefix}{family}_cpus"
            found[metric] = found.get(metric, 0) + KINDS[machine.machine_type].vcpus * pool.replica_count
    return found


def get(cloud: CloudState, request: quota_types.GetQuotaInfoRequest, caller: Caller) -> quota_types.QuotaInfo:
    """Return one quota."""
    place, quota_id = request.name.split("/quotaInfos/")
    for info in _infos(cloud, place):
        if info.quota_id == quota_id:
            return info
    raise not_found(request.name)


def list_(
    cloud: CloudState, request: quota_types.ListQuotaInfosRequest, caller: Caller
) -> quota_types.ListQuotaInfosResponse:
    """List all quotas of a service."""
    chosen, token = page(_infos(cloud, request.parent), request.page_size, request.page_token)
    return quota_types.ListQuotaInfosResponse(quota_infos=chosen, next_page_token=token)


def _infos(cloud: CloudState, place: str) -> list[quota_types.QuotaInfo]:
    parent = cloud.resolve_name(place, "cloudquotas.quotas.get")
    if not parent.endswith(f"/locations/global/services/{SERVICE}"):
        raise invalid("parent", f"{place!r}: only locations/global/services/{SERVICE} is here")
    found = []
    for metric, regions in sorted(cloud.quotas.limits.items()):
        words = metric.removeprefix(f"{SERVICE}/").split("_")
        quota_id = "".join(word.capitalize() for word in words) + "PerProjectPerRegion"
        by_region = [
            {"dimensions": {"region": region}, "details": {"value": limit}, "applicable_locations": [region]}
            for region, limit in sorted(regions.items())
        ]
        found.append(
            quota_types.QuotaInfo(
                name=f"{parent}/quotaInfos/{quota_id}",
                quota_id=quota_id,
                metric=metric,
                service=SERVICE,
                container_type=quota_types.QuotaInfo.ContainerType.PROJECT,
                dimensions=["region"],
                quota_display_name=" ".join(words),
                metric_unit="1",
                is_precise=True,
                dimensions_infos=by_region,
            )
        )
    return found


METHODS: dict[str, Any] = {"GetQuotaInfo": get, "ListQuotaInfos": list_}
