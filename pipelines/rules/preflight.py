"""What can be known to be wrong with a submission before anything is asked of Google Cloud.

Each rule is a function that yields what it finds; RULES lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from contracts import storage
from contracts.checked import Problem
from contracts.config import MachineSection, RunConfig
from contracts.errors import ConfigError, UserError
from contracts.machines import ACCELERATORS, LEAST_FOR_CUDA_13, Machine, find_machine
from contracts.own_code import pin_code
from pipelines.images.record import ROLES, find_image
from pipelines.rules.cloud_names import check_name, region_of_resource
from pipelines.rules.names import NAME_RULES, PLACE_RULES

# Of a model's container, image_uri "must identify an image in Artifact Registry or Container Registry":
# https://docs.cloud.google.com/vertex-ai/docs/reference/rest/v1/ModelContainerSpec
_REGISTRY = re.compile(r"([a-z0-9.-]+\.pkg\.dev|([a-z]+\.)?gcr\.io)/.")

# Sources that may name each image's split (sharding/sources/tables.py).
MANIFEST_SUFFIXES = (".csv", ".jsonl", ".parquet")

# Vertex AI ends what the Dynamic Workload Scheduler started after 7 days at the latest (schedule-jobs-dws).
MAX_FLEX_HOURS = 168


def find_regions(config: RunConfig) -> list[str]:
    """Return the regions in which a run is tried, in order: `cloud.region`, then `resources.regions`."""
    return [config.cloud.region, *config.resources.regions]


def find_problems(config: RunConfig) -> tuple[Problem, ...]:
    """Return everything that is wrong, the most basic first; no problem twice."""
    return tuple(dict.fromkeys(problem for rule in RULES for problem in rule(config)))


def _machines(config: RunConfig) -> Iterator[Problem]:
    for where, section in _machine_sections(config):
        try:
            machine = find_machine(section)
        except ConfigError as error:
            yield Problem.of(error, where)
            continue
        yield from _gpu(where, machine, config)
        yield from _strategy(where, machine, config)


def _gpu(where: str, machine: Machine, config: RunConfig) -> Iterator[Problem]:
    accelerator = ACCELERATORS.get(machine.accelerator_type)
    if accelerator is None:
        return
    given = f"{where}: {machine.label}: {accelerator.short} has compute capability {accelerator.capability}"
    serves = where == "resources.serving_machine" or not config.resources.serving_machine.type
    if serves and accelerator.capability_x10 < LEAST_FOR_CUDA_13:
        also = "" if where == "resources.serving_machine" else ", and resources.serving_machine is not set"
        yield Problem(
            given + also,
            f"sm{LEAST_FOR_CUDA_13} and later where models are exported and served: TensorRT 11 and Triton's images "
            "have no code for earlier GPUs; PyTorch for CUDA 12.6, which trains, has",
            "set resources.serving_machine, e.g. type=g2-standard-12 (one L4), or take NVIDIA_TESLA_T4",
        )


def _strategy(where: str, machine: Machine, config: RunConfig) -> Iterator[Problem]:
    strategy = config.resources.strategy
    if strategy not in machine.strategies:
        yield Problem(
            f"{where}: {machine.label} by {strategy}",
            " or ".join(machine.strategies),
            f"set resources.strategy={machine.strategies[0]}, or take another machine",
        )


def _ranks(config: RunConfig) -> Iterator[Problem]:
    try:
        machine = find_machine(config.resources.machine)
    except ConfigError:
        return
    ranks = config.resources.ranks
    if machine.gpus and ranks != "auto" and ranks > machine.gpus:
        yield Problem(
            f"resources.ranks = {ranks} on {machine.label}",
            f"up to {machine.gpus}: one rank per GPU",
            "lower resources.ranks, leave it at auto, or take a machine with more GPUs",
        )
        return
    total = config.resources.num_nodes * (ranks if ranks != "auto" else machine.gpus or 1)
    batch = config.train.global_batch_size
    if total > batch:
        yield Problem(
            f"train.global_batch_size = {batch} on {total} ranks",
            f"at least {total}: one sample a rank",
            "raise train.global_batch_size, or lower resources.nodes",
        )


def _early_stopping(config: RunConfig) -> Iterator[Problem]:
    """Yield that early stopping has nothing to go by; a manifest may give the splits itself."""
    gives_splits = config.sharding.source.lower().endswith(MANIFEST_SUFFIXES)
    if config.train.early_stopping is not None and config.sharding.splits.validation == 0 and not gives_splits:
        yield Problem(
            "train.early_stopping with sharding.splits.validation = 0",
            "a fraction above 0: it goes by the validation split",
            "set sharding.splits.validation, or leave train.early_stopping out",
        )


def _tensorboard(config: RunConfig) -> Iterator[Problem]:
    vertex = config.vertex
    if not vertex.tensorboard:
        return
    if not config.cloud.service_account:
        yield Problem(
            "vertex.tensorboard without cloud.service_account",
            "a TensorBoard together with the account that writes to it",
            "set cloud.service_account to an account with roles/aiplatform.user and access to the bucket",
        )
    yield from _regional("tensorboard", "vertex.tensorboard", vertex.tensorboard, config)


def _network(config: RunConfig) -> Iterator[Problem]:
    vertex = config.vertex
    if vertex.peered_network and vertex.psc_attachment:
        yield Problem(
            "vertex.peered_network and vertex.psc_attachment are both set",
            "one of them",
            "keep the one by which the jobs shall reach your network: peering or Private Service Connect",
        )
    if vertex.peered_network:
        yield from check_name("network", "vertex.peered_network", vertex.peered_network)
    if vertex.psc_attachment:
        yield from _regional("attachment", "vertex.psc_attachment", vertex.psc_attachment, config)


def _kms_key(config: RunConfig) -> Iterator[Problem]:
    if config.cloud.kms_key:
        yield from _regional("key", "cloud.kms_key", config.cloud.kms_key, config)


def _regional(kind: str, where: str, value: str, config: RunConfig) -> Iterator[Problem]:
    """Check a resource's name, and that it is where the jobs that use it are."""
    wrong = list(check_name(kind, where, value))
    if wrong:
        yield from wrong
        return
    region = region_of_resource(value)
    for job_region in dict.fromkeys(find_regions(config)):
        if job_region and region != job_region:
            yield Problem(
                f"{where} is in {region}, jobs run in {job_region}",
                f"one in {job_region}: it serves its own region only",
                f"name one in {job_region}, or leave other regions out of resources.regions",
            )


def _code(config: RunConfig) -> Iterator[Problem]:
    try:
        pin_code(config, storage.join(storage.normalise(config.run.root), config.run.name))
    except UserError as error:
        yield Problem.of(error)


def _images(config: RunConfig) -> Iterator[Problem]:
    for role in ROLES:
        try:
            find_image(config, role)
        except ConfigError as error:
            yield Problem.of(error)
            if "there is no" in error.given:
                return


def _serving_image(config: RunConfig) -> Iterator[Problem]:
    image = config.cloud.images.serving
    if not config.vertex.model.upload or _REGISTRY.match(image):
        return
    yield Problem(
        f"cloud.images.serving = {image}" if image else "vertex.model.upload without cloud.images.serving",
        "an image in Artifact Registry (*.pkg.dev) or Container Registry (gcr.io): Vertex AI takes no other",
        "mirror the Triton image that triton/README.md of an export names (docs/vertex.md) and set "
        "cloud.images.serving, or set vertex.model.upload=false",
    )


def _regions(config: RunConfig) -> Iterator[Problem]:
    regions = find_regions(config)
    for number, region in enumerate(config.resources.regions, start=1):
        if region in regions[:number]:
            yield Problem(
                f"resources.regions.{number - 1} = {region} is there twice, or is cloud.region",
                "further regions, each once",
                "remove it: a region without machines is asked again only by another submission",
            )


def _timeouts(config: RunConfig) -> Iterator[Problem]:
    resources = config.resources
    if resources.strategy == "FLEX_START" and resources.timeout_hours > MAX_FLEX_HOURS:
        yield Problem(
            f"resources.timeout_hours = {resources.timeout_hours:g} with FLEX_START",
            f"up to {MAX_FLEX_HOURS}: 7 days",
            "lower it, or leave FLEX_START out",
        )


RULES: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    *PLACE_RULES,
    _machines,
    _ranks,
    _early_stopping,
    _regions,
    _timeouts,
    _network,
    _tensorboard,
    _kms_key,
    *NAME_RULES,
    _code,
    _images,
    _serving_image,
)


def _machine_sections(config: RunConfig) -> Iterator[tuple[str, MachineSection]]:
    yield "resources.machine", config.resources.machine
    if config.resources.serving_machine.type:
        yield "resources.serving_machine", config.resources.serving_machine


def check_line(config: RunConfig) -> None:
    """Find what no data can mend before the first stage spends anything.

    Raises:
        ConfigError: A later stage could not succeed.
    """
    batch, ranks = config.train.global_batch_size, config.resources.ranks
    if ranks != "auto" and batch < ranks:
        raise ConfigError(
            f"train.global_batch_size {batch} for resources.ranks = {ranks}",
            allowed="at least one sample per rank and step",
            todo=f"set train.global_batch_size to {ranks} or more, or resources.ranks to {batch} or less",
        )
    # A manifest may give the splits itself; folders are split by these fractions alone.
    gives_splits = config.sharding.source.lower().endswith(MANIFEST_SUFFIXES)
    if config.sharding.splits.test == 0 and not gives_splits:
        raise ConfigError(
            "sharding.splits.test = 0, and export proves the exported graphs on the test split",
            allowed="a fraction above 0 for `shardline run`",
            todo="set sharding.splits.test, or run the stages shard, profile and train one by one",
        )
    for problem in _early_stopping(config):
        raise problem.error()
    check_cost_cap(config)


def check_cost_cap(config: RunConfig) -> None:
    """Raise ConfigError where training on this machine has a cost cap and no price.

    The table of prices is for machines of Vertex AI.
    """
    cap = config.resources.max_cost_usd
    if cap is not None and config.resources.price_usd_per_h is None:
        raise ConfigError(
            f"resources.max_cost_usd = {cap:g} without resources.price_usd_per_h",
            allowed="on this machine, a cap together with a price",
            todo="set resources.price_usd_per_h to what this machine costs in an hour, or leave "
            "resources.max_cost_usd out",
        )
