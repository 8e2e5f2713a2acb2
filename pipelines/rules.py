"""Rules: validation of a configuration before a submission or a local run, without calls to Google.

The checks by the stages are in pipelines/checks.py.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from contextlib import suppress

from contracts import storage
from contracts.checked import Findings, Problem
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import ACCELERATORS, LEAST_FOR_CUDA_13, find_machine, serving_section
from contracts.own_code import pin_code
from contracts.previous import PREVIOUS
from pipelines.manifest_files import MANIFEST_SUFFIXES
from rehearsal.vertex.cron import find_mistake

MAX_NAME = 40
"""Longest run.name: Dataflow's job names and Vertex AI's labels have at most 63 characters, ids included."""

MAX_FLEX_HOURS = 168
"""Longest duration of FLEX_START jobs in hours (schedule-jobs-dws)."""

_REGION = r"[a-z]+(?:-[a-z]+)+[0-9]{1,2}"
_BUCKET = r"[a-z0-9](?:[a-z0-9._-]{1,220}[a-z0-9])?"
# Variables that Vertex AI, torchrun or the launcher set: a user's value would be lost, or break the launch.
_OWNED = "(?:CLUSTER_SPEC|TF_CONFIG|(?:LOCAL_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_ADDR|MASTER_PORT|HOME|PATH)$"

# Kind of name -> (pattern, what is allowed).
_NAMES = {
    "project": (
        r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "a project id, as `gcloud projects list` prints it, not its number or title",
    ),
    "region": (_REGION, "a region, e.g. us-central1 (not a zone, e.g. us-central1-a)"),
    "bucket": (_BUCKET, "a bucket's name: lower-case letters, digits, '-', '_' and '.'"),
    "folder": (
        rf"gs://{_BUCKET}(?:/.*)?",
        "gs://BUCKET/FOLDER: no machine of the cloud sees this one's disk (`shardline submit` uploads local data)",
    ),
    "line": (
        rf"[a-z](?:[a-z0-9-]{{0,{MAX_NAME - 2}}}[a-z0-9])?",
        f"a lower-case letter, then up to {MAX_NAME - 1} letters, digits and '-', the last no '-'",
    ),
    "run": (r"[a-z][-a-z0-9]{0,127}", "a lower-case letter, then up to 127 lower-case letters, digits and '-'"),
    "label": (
        r"(?!goog)[a-z][a-z0-9_-]{0,62}: [a-z0-9_-]{0,63}",
        "up to 63 lower-case letters, digits, '_' and '-' each; a key begins with a letter, and not with goog",
    ),
    "variable": (
        rf"(?!{_OWNED}|AIP_|CLOUD_ML_|PET_|TORCHELASTIC_|SHARDLINE_)[A-Za-z_][A-Za-z0-9_]*",
        "names of variables that neither Vertex AI nor torchrun nor the launcher sets",
    ),
    "mail": (r"[\w.%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", "an e-mail address"),
    # The run's name is appended; together they have at most 121 characters.
    "experiment": (r"[a-z0-9][a-z0-9-]{0,79}", "lower-case letters, digits and '-', up to 80"),
    "resource": (
        rf"projects/[^/]+/(?:global|(?:locations|regions)/{_REGION})/.+",
        "a full name as Google Cloud prints it: projects/PROJECT/locations/REGION/...",
    ),
    # https://docs.cloud.google.com/vertex-ai/docs/reference/rest/v1/ModelContainerSpec
    "serving image": (
        r"(?:[a-z0-9.-]+\.pkg\.dev|(?:[a-z]+\.)?gcr\.io)/.+",
        "for a model that is registered, a Triton image in Artifact Registry (*.pkg.dev) or gcr.io (docs/vertex.md)",
    ),
}


def find_regions(config: RunConfig) -> list[str]:
    """Return the regions to try, in order: `cloud.region`, then `resources.regions`."""
    return [config.cloud.region, *config.resources.regions]


def find_problems(config: RunConfig, *, run_id: str = "", scheduled: bool = False) -> tuple[Problem, ...]:
    """Return the problems of a submission, the most basic first, without duplicates.

    Args:
        config: The resolved configuration, with absolute paths.
        run_id: Id of the run; empty: generated.
        scheduled: Whether it is for a schedule, which requires schedule.cron.
    """
    problems = [
        *_check_names(config, run_id),
        *_check_resources(config),
        *_check_strategy(config),
        *_check_machines(config),
        *_check_splits(config),
        *_check_schedule(config, needed=scheduled),
        *_check_code(config),
    ]
    return tuple(dict.fromkeys(problems))


def find_warnings(config: RunConfig) -> Iterator[str]:
    """Yield warnings about valid settings that may cost money by mistake."""
    resources = config.resources
    if resources.regions:
        elsewhere = ", ".join(resources.regions)
        yield (
            f"only `submit --wait` tries {elsewhere} (resources.regions); jobs there read the bucket across regions, "
            "slower, and the traffic is billed"
        )
    serving = serving_section(config)
    with suppress(ConfigError):
        if config.register.upload and not config.export.allow_unproven and not find_machine(serving).gpus:
            yield f"register.upload on {serving.type}: without a GPU the export stays unproven, and is not registered"
    if resources.max_hours is not None and resources.max_hours > resources.timeout_hours:
        yield (
            f"resources.max_hours = {resources.max_hours:g} is beyond resources.timeout_hours = "
            f"{resources.timeout_hours:g}: the job times out before training ends by itself"
        )


def check_line(config: RunConfig) -> None:
    """Check a run of all stages on this machine.

    Raises:
        ConfigError: A later stage would fail.
    """
    ranks = config.resources.ranks
    for problem in (*_check_batch(config, 1 if ranks == "auto" else ranks), *_check_splits(config)):
        raise problem.error()
    check_cost_cap(config)


def check_cost_cap(config: RunConfig) -> None:
    """Check that a cost cap of a local training has a price: the price table is for machines of Vertex AI.

    Raises:
        ConfigError: There is a cap without a price.
    """
    cap = config.resources.max_cost_usd
    if cap is not None and config.resources.price_usd_per_h is None:
        raise ConfigError(
            f"resources.max_cost_usd = {cap:g} without resources.price_usd_per_h",
            allowed="on this machine, a cap together with a price",
            todo="set resources.price_usd_per_h, or leave resources.max_cost_usd out",
        )


def check_name(kind: str, key: str, value: str) -> Iterator[Problem]:
    """Yield a problem if a value is not set, or is not a valid name of its kind.

    Args:
        kind: A key of _NAMES.
        key: The configuration key, or the option, of the value.
        value: The value.
    """
    pattern, allowed = _NAMES[kind]
    if not re.fullmatch(pattern, value):
        yield Problem(f"{key} = {value}" if value else f"{key} is not set", allowed, f"correct {key}")


def _check_names(config: RunConfig, run_id: str) -> Iterator[Problem]:
    cloud, vertex, weights = config.cloud, config.vertex, config.model.weights
    yield from check_name("project", "cloud.project", cloud.project)
    yield from check_name("region", "cloud.region", cloud.region)
    for number, region in enumerate(config.resources.regions):
        yield from check_name("region", f"resources.regions.{number}", region)
    yield from check_name("folder", "run.root", config.run.root)
    yield from check_name("folder", "sharding.source", config.sharding.source)
    yield from check_name("line", "run.name", config.run.name)
    for key, value in cloud.labels.items():
        yield from check_name("label", "cloud.labels", f"{key}: {value}")
    for name in config.resources.env:
        yield from check_name("variable", "resources.env", name)
    for number, address in enumerate(vertex.mail):
        yield from check_name("mail", f"vertex.mail.{number}", address)
    if config.register.upload:
        yield from check_name("serving image", "cloud.images.serving", cloud.images.serving)
    for kind, key, value in (
        ("run", "--run-id", run_id),
        ("folder", "model.weights", "" if weights == PREVIOUS else weights),
        ("mail", "cloud.service_account", cloud.service_account),
        ("experiment", "vertex.experiment", vertex.experiment),
    ):
        if value:
            yield from check_name(kind, key, value)


def _check_resources(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of other cloud resources: invalid names, and regions other than those of the jobs."""
    vertex, regions = config.vertex, find_regions(config)
    for key, name in (
        ("vertex.peered_network", vertex.peered_network),
        ("vertex.psc_attachment", vertex.psc_attachment),
        ("vertex.tensorboard", vertex.tensorboard),
        ("cloud.kms_key", config.cloud.kms_key),
    ):
        if name:
            yield from check_name("resource", key, name)
        place = re.search(r"/(?:locations|regions)/([^/]+)/", name)
        if place and (elsewhere := [region for region in regions if region not in ("", place[1])]):
            given = f"{key} is in {place[1]}, jobs run in {', '.join(elsewhere)}"
            yield Problem(given, "a resource in the region of the jobs", f"name another {key}")
    if vertex.peered_network and vertex.psc_attachment:
        yield Problem("vertex.peered_network and vertex.psc_attachment are both set", "one of them", "remove one")
    if vertex.tensorboard and not config.cloud.service_account:
        given = "vertex.tensorboard without cloud.service_account"
        yield Problem(given, "the account that writes to it", "set cloud.service_account")


def _check_strategy(config: RunConfig) -> Iterator[Problem]:
    resources, regions = config.resources, find_regions(config)
    for region in dict.fromkeys(region for region in regions if regions.count(region) > 1):
        yield Problem(f"resources.regions: {region} is there twice, or is cloud.region", "each once", "remove it")
    if resources.strategy == "FLEX_START" and resources.timeout_hours > MAX_FLEX_HOURS:
        given = f"resources.timeout_hours = {resources.timeout_hours:g} with FLEX_START"
        yield Problem(given, f"up to {MAX_FLEX_HOURS}: 7 days", "lower it, or take another resources.strategy")


def _check_machines(config: RunConfig) -> Iterator[Problem]:
    resources = config.resources
    serving = serving_section(config)
    sections = {"resources.machine": resources.machine}
    if serving is not resources.machine:
        sections["resources.serving_machine"] = serving
    for key, section in sections.items():
        try:
            machine = find_machine(section)
        except ConfigError as error:
            yield Problem.of(error, key)
            continue
        if resources.strategy not in machine.strategies:
            yield Problem(
                f"{key}: {machine.label} by {resources.strategy}",
                " or ".join(machine.strategies),
                f"set resources.strategy={machine.strategies[0]}, or take another machine",
            )
        gpu = ACCELERATORS.get(machine.accelerator_type)
        if gpu and gpu.capability_x10 < LEAST_FOR_CUDA_13 and section is serving:
            yield Problem(
                f"{key}: {machine.label}, which exports: {gpu.short} has compute capability {gpu.capability}",
                f"sm{LEAST_FOR_CUDA_13} and later: TensorRT 11 and Triton's images have no code for earlier GPUs",
                "set resources.serving_machine, e.g. type=g2-standard-12 (one L4), or take NVIDIA_TESLA_T4",
            )
        if section is resources.machine:
            ranks = resources.ranks if resources.ranks != "auto" else machine.gpus or 1
            if ranks > machine.gpus > 0:
                given = f"resources.ranks = {ranks} on {machine.label}"
                yield Problem(given, f"up to {machine.gpus}: one per GPU", "lower resources.ranks, or leave it at auto")
            yield from _check_batch(config, resources.num_nodes * ranks)


def _check_batch(config: RunConfig, ranks: int) -> Iterator[Problem]:
    batch = config.train.global_batch_size
    if batch < ranks:
        yield Problem(
            f"train.global_batch_size = {batch} on {ranks} ranks",
            f"at least {ranks}: one sample per rank and step",
            "raise train.global_batch_size, or lower resources.nodes or resources.ranks",
        )


def _check_splits(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of empty splits that a stage needs. Manifests may define splits themselves: not checked."""
    if config.sharding.source.lower().endswith(MANIFEST_SUFFIXES):
        return
    splits = config.sharding.splits
    if splits.test == 0:
        yield Problem(
            "sharding.splits.test = 0, and export proves the exported graphs on the test split",
            "a fraction above 0",
            "set sharding.splits.test, or run the stages shard, profile and train one by one on this machine",
        )
    if config.train.early_stopping is not None and splits.validation == 0:
        yield Problem(
            "train.early_stopping with sharding.splits.validation = 0",
            "a fraction above 0: it goes by the validation split",
            "set sharding.splits.validation, or leave train.early_stopping out",
        )


def _check_schedule(config: RunConfig, *, needed: bool) -> Iterator[Problem]:
    cron, zone = config.schedule.cron, config.schedule.time_zone
    if not cron and not needed:
        return
    count = len(cron.split())
    if wrong := find_mistake(cron) if count == 5 else f"it has {count} fields":
        yield Problem(
            f"schedule.cron = {cron}: {wrong}" if cron else "schedule.cron is not set",
            "unix-cron: minute 0-59, hour 0-23, day 1-31, month 1-12, weekday 0-7, on a day that there is; numbers, "
            "names (JAN, SUN), * , - / in each of the five fields",
            "write for example '0 6 * * 1' for Mondays at six; the time zone is schedule.time_zone",
        )
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        yield Problem(
            f"schedule.time_zone = {zone}",
            "a name of the IANA database, e.g. Europe/Berlin",
            "correct it: an abbreviation such as CET does not define daylight saving",
        )


def _check_code(config: RunConfig) -> Iterator[Problem]:
    findings = Findings()
    with findings.refusals():
        pin_code(config, storage.join(storage.normalise(config.run.root), config.run.name))
    yield from findings.problems
