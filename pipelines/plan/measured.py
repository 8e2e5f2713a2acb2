"""How fast finished trainings of a line were, by the records of its runs: what `plan --compare` calls measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from contracts import storage
from contracts.artifacts import RunRecord, ShardManifest
from contracts.config import MachineSection, RunConfig
from contracts.errors import ConfigError, DataError
from contracts.machines import Machine, find_machine
from contracts.resolve import parse_config
from contracts.result import RUNS_FOLDER

_RECORD_NAME = "run.json"
_MACHINE = re.compile(r"(?P<type>[a-z0-9-]+)(?:\+(?:(?P<number>[1-9]|1[0-6])x)?(?P<gpu>[A-Z0-9_]+))?")


@dataclass(frozen=True)
class Measurement:
    """One finished training on known machines."""

    run_id: str
    machine: Machine
    nodes: int
    samples_per_s: float
    """In steps that count: forward, backward, update and the wait for data; no evaluation, checkpoint or start."""
    epoch_samples: int | None = None
    """Samples of its training split; None: its shards are gone."""

    def fits(self, machine: Machine, nodes: int) -> bool:
        """Return whether it was on so many machines of this kind."""
        return (self.machine.type, self.machine.accelerator_type, self.machine.gpus, self.nodes) == (
            machine.type,
            machine.accelerator_type,
            machine.gpus,
            nodes,
        )


def find_measurements(line_uri: str, config: RunConfig) -> list[Measurement]:
    """Return the trainings of a line that were of this network and this global batch, the newest run first."""
    found = []
    root = storage.join(line_uri, RUNS_FOLDER)
    for run_id in sorted(storage.list_names(root), reverse=True):
        uri = storage.join(root, run_id, _RECORD_NAME)
        if not storage.exists(uri):
            continue
        try:
            record = RunRecord.parse(storage.read_bytes(uri), where=uri)
        except DataError:
            continue
        if (measurement := _measure(record, config)) is not None:
            found.append(measurement)
    return found


def _measure(record: RunRecord, config: RunConfig) -> Measurement | None:
    trained = next((stage for stage in record.stages if stage.name == "train"), None)
    if record.goodput is None or trained is None or trained.state != "done" or not record.goodput.steps:
        return None
    try:
        ran = parse_config(record.config, where=record.id)
        machine = find_machine(ran.resources.machine)
    except ConfigError:
        # Of a version with other fields, or on a machine of the user's own.
        return None
    if _of_training(ran) != _of_training(config):
        return None
    seconds = record.goodput.productive_s + record.goodput.data_wait_s
    if seconds <= 0:
        return None
    nodes = 1 if ran.resources.nodes == "auto" else ran.resources.nodes
    samples = record.goodput.steps * ran.train.global_batch_size
    return Measurement(record.id, machine, nodes, samples / seconds, _count_epoch(record))


def _count_epoch(record: RunRecord) -> int | None:
    shards = next((stage for stage in record.stages if stage.name == "shard"), None)
    if shards is None or not shards.uri:
        return None
    try:
        return ShardManifest.load(shards.uri).splits["train"].samples
    except DataError:
        return None


def _of_training(config: RunConfig) -> dict[str, Any]:
    """Return what two trainings must share to be as fast as each other on the same machines."""
    return {
        "model": config.model.model_dump(),
        "train": config.train.model_dump(exclude={"epochs", "max_steps", "learning_rate"}),
        "image_size": config.data.image_size,
        "ranks": config.resources.ranks,
    }


# A GPU of each class that many have, beside the one that is configured.
_USUAL = "n1-standard-8+NVIDIA_TESLA_T4,g2-standard-12,a2-highgpu-1g,a3-highgpu-8g"


def parse_machines(text: str | None) -> list[Machine]:
    """Return the machines of a list, `g2-standard-12,n1-standard-8+2xNVIDIA_TESLA_T4`; None: usual ones.

    Raises:
        ConfigError: One of them is none.
    """
    machines = []
    for word in (text or _USUAL).split(","):
        parts = _MACHINE.fullmatch(word.strip())
        if parts is None:
            raise ConfigError(
                f"{word!r} is no machine",
                allowed="a machine type, with +GPU or +NUMBERxGPU behind it where they are to be chosen",
                todo="write for example g2-standard-12,n1-standard-8+2xNVIDIA_TESLA_T4",
            )
        values: dict[str, Any] = {"type": parts["type"], "accelerator_type": parts["gpu"] or ""}
        if parts["number"]:
            values["accelerator_count"] = int(parts["number"])
        machines.append(find_machine(MachineSection.model_validate(values)))
    return machines


def parse_numbers(text: str) -> list[int]:
    """Return the whole numbers of a list, `1,2,4`, in order.

    Raises:
        ConfigError: One of them is none.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 1 <= int(word) <= 1024 for word in words):
        raise ConfigError(f"--nodes {text}", allowed="whole numbers from 1 to 1024", todo="write for example 1,2,4")
    return sorted({int(word) for word in words})
