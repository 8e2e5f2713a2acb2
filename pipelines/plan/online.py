"""What only Google Cloud knows of a plan: the bucket's region and the project's quotas.

It reads, with the account of the environment (roles/storage.legacyBucketReader on the bucket, roles/cloudquotas.viewer
on the project); it changes nothing. `plan --online` needs both answers; `submit` and `schedule create` go on without
one that the account may not have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import QuotaNeed
from contracts.machines.quotas import SERVICE
from pipelines.google import explained, first_line, read_options
from pipelines.plan.plan import Plan
from pipelines.rules.problem import Problem

# Cloud Quotas says -1 of what has no limit (google.api.cloudquotas.v1.QuotaDetails).
_UNLIMITED = -1


@dataclass(frozen=True)
class QuotaAnswer:
    """What the project has of a quota that a rung needs."""

    region: str
    need: QuotaNeed
    limit: int | None
    """None: the project knows no such metric in this region; -1: no limit."""


@dataclass(frozen=True)
class Answers:
    """What Google Cloud said."""

    bucket_location: str
    """In lower case: a region, or a multi-region such as us; empty: the account may not ask."""
    location_type: str
    """region, dual-region or multi-region."""
    quotas: tuple[QuotaAnswer, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def ask(config: RunConfig, plan: Plan, *, may_lack: bool = False) -> Answers:
    """Ask for the bucket's region and the quotas of all rungs.

    Args:
        config: Resolved.
        plan: Its rungs and their needs.
        may_lack: For a submission: an answer that the account may not have is a warning, else it is an error; and
            a metric that the project does not know is no news.

    Raises:
        ConfigError: No credentials, no such bucket or project, or no permission.
        TryAgain: No answer.
    """
    lacking: list[str] = []
    bucket, (location, kind) = config.run.root.removeprefix("gs://").partition("/")[0], ("", "region")
    with _unless_forbidden(lacking if may_lack else None):
        location, kind = _ask_bucket(bucket, config.cloud.project)
    quotas: tuple[QuotaAnswer, ...] = ()
    with _unless_forbidden(lacking if may_lack else None):
        needs = list(dict.fromkeys((rung.region, need) for rung in plan.rungs for need in rung.quotas))
        limits = _ask_limits(config.cloud.project, {need.metric for _, need in needs})
        quotas = tuple(QuotaAnswer(region, need, _limit(limits.get(need.metric, {}), region)) for region, need in needs)
    return Answers(
        bucket_location=location,
        location_type=kind,
        quotas=quotas,
        problems=(*_judge_bucket(bucket, location, kind, config.cloud.region), *_judge(quotas, plan)),
        warnings=(*lacking, *_describe_bucket(bucket, location, kind), *_doubt(quotas, names_unknown=not may_lack)),
    )


@contextlib.contextmanager
def _unless_forbidden(lacking: list[str] | None) -> Iterator[None]:
    """Turn a missing permission, or an API that is switched off, into a warning in `lacking`; None: raise it."""
    try:
        yield
    except ConfigError as error:
        from google.api_core.exceptions import Forbidden

        if lacking is None or not isinstance(error.__cause__, Forbidden):
            raise
        lacking.append(f"not known before the submission: {first_line(error)}")


def _ask_bucket(name: str, project: str) -> tuple[str, str]:
    """Return where a bucket is, and what kind of place that is."""
    with explained(f"bucket gs://{name}", project=project):
        from google.cloud import storage

        bucket = storage.Client(project=project).get_bucket(name, timeout=60)
        return str(bucket.location).lower(), str(bucket.location_type or "region")


def _ask_limits(project: str, metrics: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the limits of metrics by region; under "" what holds in all other regions."""
    wanted = set(metrics)
    found: dict[str, dict[str, int]] = {}
    with explained("Cloud Quotas", project=project):
        from google.cloud import cloudquotas_v1

        client = cloudquotas_v1.CloudQuotasClient()
        parent = f"projects/{project}/locations/global/services/{SERVICE}"
        for info in client.list_quota_infos(parent=parent, **read_options()):
            if info.metric in wanted:
                _add(found.setdefault(info.metric, {}), info.dimensions_infos)
    return found


def _add(limits: dict[str, int], infos: Iterable[Any]) -> None:
    for info in infos:
        regions = [info.dimensions["region"]] if "region" in info.dimensions else list(info.applicable_locations)
        # Dimensions without a region hold where no other entry does; their locations may be named or not.
        for region in regions or [""]:
            if "region" in info.dimensions or region not in limits:
                limits[region] = int(info.details.value)
        if "region" not in info.dimensions:
            limits.setdefault("", int(info.details.value))


def _limit(limits: Mapping[str, int], region: str) -> int | None:
    return limits.get(region, limits.get(""))


def _judge_bucket(bucket: str, location: str, kind: str, region: str) -> list[Problem]:
    """A bucket of one region must be where the pipeline is."""
    if location and kind == "region" and location != region:
        return [
            Problem(
                f"gs://{bucket} is in {location}, and cloud.region = {region}",
                "a bucket and a pipeline in one region",
                f"set cloud.region={location}, or take a bucket in {region}: what crosses regions is slow and billed",
            )
        ]
    return []


def _judge(quotas: Iterable[QuotaAnswer], plan: Plan) -> list[Problem]:
    """One rung's quotas must do: a submission that waits climbs over the others."""
    short = {(answer.region, answer.need): answer for answer in quotas if _is_short(answer)}
    if not plan.rungs or not all(any((rung.region, need) in short for need in rung.quotas) for rung in plan.rungs):
        return []
    region = plan.rungs[0].region
    return [
        Problem(
            f"quota {need.metric} in {region} is {short[region, need].limit}, and a job needs {need.amount}",
            f"at least {need.amount}",
            "ask for more at https://console.cloud.google.com/iam-admin/quotas, or take fewer machines, another region "
            "or another strategy",
        )
        for need in plan.rungs[0].quotas
        if (region, need) in short
    ]


def _is_short(answer: QuotaAnswer) -> bool:
    return answer.limit is not None and answer.limit != _UNLIMITED and answer.limit < answer.need.amount


def _describe_bucket(bucket: str, location: str, kind: str) -> list[str]:
    return (
        [f"gs://{bucket} is a {kind} bucket ({location}): reads are slower than from one region"]
        if (kind != "region")
        else []
    )


def _doubt(quotas: Iterable[QuotaAnswer], *, names_unknown: bool) -> list[str]:
    said = []
    for answer in quotas:
        if answer.limit is None and names_unknown:
            said.append(
                f"the project has no quota {answer.need.metric} in {answer.region}: "
                + ("these machines are not offered there" if answer.need.verified else "its name may be another")
            )
        elif _is_short(answer):
            said.append(
                f"quota {answer.need.metric} in {answer.region} is {answer.limit}, a rung needs {answer.need.amount}"
            )
    return said
