"""Cloud Quotas: the limits that a project has, by metric and region.

https://cloud.google.com/docs/quotas/api-overview
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.cloud.cloudquotas_v1 import types as quota_types

from rehearsal.doors.errors import invalid, not_found
from rehearsal.resources.listing import page

if TYPE_CHECKING:
    from rehearsal.resources.cloud_state import Caller, CloudState

SERVICE = "aiplatform.googleapis.com"


class Quotas:
    """Limits by metric and region; what is not named has no limit.

    Args:
        limits: Metric (with or without aiplatform.googleapis.com/ before it) -> region -> limit.
    """

    def __init__(self, limits: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.limits = {
            metric if metric.startswith(SERVICE) else f"{SERVICE}/{metric}": dict(regions)
            for metric, regions in (limits or {}).items()
        }


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
