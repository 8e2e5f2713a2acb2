"""Rules of `shardline plan` about names: of projects, regions, buckets, labels, variables, accounts and schedules."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Iterator

from contracts.checked import Problem
from contracts.config import RunConfig
from contracts.previous import PREVIOUS
from pipelines.rules.cloud_names import check_name
from rehearsal.vertex.cron import find_mistake

# Longest run.name: Dataflow's job names and Vertex AI's label values end at 63 characters, and ids are appended.
MAX_NAME = 40

# Variables that Vertex AI, torchrun or the launcher set or read; a user's value would be lost, or break the launch.
OWNED = frozenset(
    {
        "CLUSTER_SPEC",
        "TF_CONFIG",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "JOB_COMPLETION_INDEX",
        "PYTHONSAFEPATH",
        "HOME",
        "PATH",
    }
)
OWNED_PREFIXES = ("AIP_", "CLOUD_ML_", "PET_", "TORCHELASTIC_", "GROUP_", "ROLE_", "SHARDLINE_")


def _project(config: RunConfig) -> Iterator[Problem]:
    yield from check_name("project", "cloud.project", config.cloud.project)


def _region(config: RunConfig) -> Iterator[Problem]:
    yield from check_name("region", "cloud.region", config.cloud.region)
    for number, region in enumerate(config.resources.regions):
        yield from check_name("region", f"resources.regions.{number}", region)


def _root(config: RunConfig) -> Iterator[Problem]:
    for where, value, what in (
        ("run.root", config.run.root, "the line"),
        ("sharding.source", config.sharding.source, "the data"),
    ):
        if not value.startswith("gs://"):
            given = f"{where} = {value}" if value else f"{where} is not set"
            yield Problem(
                given,
                "gs://BUCKET/FOLDER",
                f"{what} must lie in a bucket: no machine of Vertex AI sees this one's disk; `shardline submit` "
                "uploads data that is here, and `shardline rehearse` copies it to a bucket of its own",
            )
            continue
        bucket = value.removeprefix("gs://").partition("/")[0]
        yield from check_name("bucket", f"{where}: bucket", bucket)


def _weights(config: RunConfig) -> Iterator[Problem]:
    weights = config.model.weights
    if weights and weights != PREVIOUS and not weights.startswith("gs://"):
        yield Problem(
            f"model.weights = {weights}",
            "gs://BUCKET/FOLDER or FILE, or previous",
            "copy them to a bucket: no machine of Vertex AI sees this one's disk; or rehearse: `shardline rehearse` "
            "copies local weights to a bucket of its own",
        )


def _run_name(config: RunConfig) -> Iterator[Problem]:
    name = config.run.name
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", name) or len(name) > MAX_NAME:
        yield Problem(
            f"run.name = {name}",
            f"a lower-case letter, then up to {MAX_NAME - 1} letters, digits and '-', the last no '-'",
            "jobs of Vertex AI and Dataflow are named by it: rename the line",
        )


def _labels(config: RunConfig) -> Iterator[Problem]:
    for key, value in config.cloud.labels.items():
        wrong = not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value)
        if wrong or key.startswith("goog"):
            yield Problem(
                f"cloud.labels.{key} = {value}",
                "keys that begin with a lower-case letter but not with goog, then letters, digits, '_' and '-'; values "
                "of the same characters; up to 63 each",
                "write it in lower case, with '-' for other characters",
            )
    # Four places are left for the line's own labels.
    if len(config.cloud.labels) > 60:
        yield Problem(f"{len(config.cloud.labels)} cloud.labels", "up to 60", "drop some")


def _variables(config: RunConfig) -> Iterator[Problem]:
    for name in config.resources.env:
        if name in OWNED or name.startswith(OWNED_PREFIXES):
            yield Problem(
                f"resources.env.{name}",
                "variables that neither Vertex AI nor torchrun nor the launcher owns",
                f"remove it: the job's own {name} decides",
            )
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem(
                f"resources.env: {name!r} is no variable's name",
                "a letter or '_', then letters, digits and '_'",
                "rename it",
            )


def _names(config: RunConfig) -> Iterator[Problem]:
    vertex = config.vertex
    if config.cloud.service_account:
        yield from check_name("mail", "cloud.service_account", config.cloud.service_account)
    for number, address in enumerate(vertex.mail):
        yield from check_name("mail", f"vertex.mail.{number}", address)
    if vertex.experiment:
        yield from check_name("experiment", "vertex.experiment", vertex.experiment)


def _schedule(config: RunConfig) -> Iterator[Problem]:
    section = config.schedule
    if not section.cron:
        return
    if (count := len(section.cron.split())) != 5:
        yield Problem(
            f"schedule.cron = {section.cron}: it has {count} fields",
            "five fields: minute, hour, day of the month, month, day of the week",
            "write for example '0 6 * * 1'; the time zone is schedule.time_zone",
        )
    elif wrong := find_mistake(section.cron):
        yield Problem(
            f"schedule.cron = {section.cron}: {wrong}",
            "unix-cron, on a day that there is: minute 0-59, hour 0-23, day 1-31, month 1-12, weekday 0-7; numbers, "
            "names (JAN, SUN), * , - / in each field",
            "correct that field: unix-cron knows no last or nth day (L, W, #, ?)",
        )
    try:
        zoneinfo.ZoneInfo(section.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        yield Problem(
            f"schedule.time_zone = {section.time_zone}",
            "a name of the IANA database, e.g. Europe/Berlin",
            "correct it: an abbreviation such as CET says nothing of daylight saving",
        )


PLACE_RULES: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (_project, _region, _root, _weights, _run_name)
NAME_RULES: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (_labels, _variables, _names, _schedule)
