"""Section `resources`: what the stages run on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from contracts.config.base import Auto, NotBool, PositiveInt, Section

# Beam runners that people ask for, and why they are no choice (docs/decisions/0001-beam-runners.md).
REFUSED_RUNNERS = {
    "dask": "Beam's DaskRunner reports DONE with wrong data: a second sink is skipped, finish_bundle's output is lost",
    "direct": "Beam's DirectRunner tries Prism first, which it downloads, and falls back silently: use fnapi",
    "prism": "Beam's PrismRunner is a binary that Beam downloads: use fnapi",
    "flink": "no job service of Beam is used here: use fnapi or dataflow",
    "spark": "no job service of Beam is used here: use fnapi or dataflow",
    "portable": "no job service of Beam is used here: use fnapi or dataflow",
}


Strategy = Literal["STANDARD", "SPOT", "FLEX_START"]


class ServingMachineSection(Section):
    """Machine of the export; with a type unset it is `machine`."""

    type: str = ""
    """Compute Engine machine type, e.g. g2-standard-12."""
    accelerator_type: str = ""
    """GPU by the name of Vertex AI's API, e.g. NVIDIA_L4 (Compute Engine: nvidia-l4); unset: what the machine type
    brings, none where it brings none."""


class MachineSection(ServingMachineSection):
    """One kind of machine of Compute Engine. What can be combined, and what Vertex AI takes of it: `shardline plan`."""

    accelerator_count: Annotated[int, Field(strict=True, ge=1, le=16)] | Auto = "auto"
    """GPUs of one machine; `auto`: what the machine type brings, one where that is to be chosen."""
    boot_disk_gb: Annotated[int, Field(strict=True, ge=100, le=64000)] = 100
    """Size of the boot disk in GB, which holds the cache of shards too; Vertex AI takes no less than 100. An SSD, or
    Hyperdisk where the machine takes no other."""


class ResourcesSection(Section):
    """What the stages run on. Nothing here changes a step; a budget may end training before its last."""

    machine: MachineSection = MachineSection()
    """Machines of profiling and training, where a cloud starts them."""
    serving_machine: ServingMachineSection = ServingMachineSection()
    """Machine of the export: the kind that will serve, since an engine belongs to its GPU."""
    strategy: Strategy = "SPOT"
    """How Vertex AI is asked for machines."""
    regions: Annotated[list[str], Field(max_length=8)] = []
    """Further regions that `submit --wait` tries in turn after `cloud.region`, when a region has no machines
    (docs/vertex.md)."""
    max_pending_s: Annotated[float, Field(ge=10, le=604800), NotBool] | None = None
    """Seconds that a job may wait for its first machines: with FLEX_START, Vertex AI then ends it (unset: a day); else
    `submit --wait` cancels it and tries the next region (unset: an hour). A job that has run before and waits after a
    preemption is left alone."""
    timeout_hours: Annotated[float, Field(gt=0, le=720), NotBool] = 168
    """Hours after which Vertex AI ends a CustomJob; that of the training sooner where `max_cost_usd` affords less."""
    env: dict[str, str] = {}
    """Variables of the training machines, e.g. NCCL_DEBUG: INFO."""

    ranks: PositiveInt | Auto = "auto"
    """Training processes on each machine, up to one per GPU; `auto`: one per GPU, without a GPU two."""
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)] | Auto = "auto"
    """Intra-op threads of each rank; `auto`: cores / ranks."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=1024)] | Auto = "auto"
    """Machines that train together; `auto`: what the environment says (docs/launch.md), else one."""
    port: Annotated[int, Field(strict=True, ge=1024, le=65000)] = 29500
    """Port of the first machine on which launchers meet, where the environment names none (CLUSTER_SPEC has one)."""
    max_attempts: PositiveInt = 5
    """Consecutive starts of a job's ranks without a new committed checkpoint after which the job is ended."""
    setup_timeout_s: Annotated[float, Field(ge=5, le=86400), NotBool] = 900
    """Seconds that machines, and their ranks, wait for each other until training starts; then they end (exit code 75),
    and another attempt begins."""
    hang_timeout_s: Annotated[float, Field(ge=5, le=86400), NotBool] = 600
    """Seconds without a sign of life after which a rank counts as hung, in a step, in reading, in an evaluation and in
    a checkpoint alike; then it ends, and all start again from the newest checkpoint."""
    stop_budget_s: Annotated[float, Field(ge=1, le=3600), NotBool] = 25
    """Seconds from a signal or a notice that the machine goes away to the end of all ranks: a running write of a
    checkpoint and the agreed one within it, else the newest earlier one stands. Compute Engine gives 30."""
    max_hours: Annotated[float, Field(gt=0), NotBool] | None = None
    """Hours that training may take over all its attempts; then it ends with its best checkpoint. Unset: no limit."""
    max_cost_usd: Annotated[float, Field(gt=0), NotBool] | None = None
    """US dollars that training may cost, by `price_usd_per_h`; likewise. On Vertex AI it also sets the timeout of the
    training job, not that of profile and export."""
    price_usd_per_h: Annotated[float, Field(gt=0), NotBool] | None = None
    """What all machines of the training cost in an hour, in US dollars; unset: the price in the table of machine types,
    where it has one (docs/plan.md)."""
    beam_runner: Literal["fnapi", "dataflow"] = "fnapi"
    """What the shard stage runs on: this machine, or Dataflow."""
    beam_workers: Annotated[int, Field(strict=True, ge=1, le=1024)] | Auto = "auto"
    """Worker processes of `fnapi`; `auto`: one per core where the work outweighs their start, else none."""

    @property
    def num_nodes(self) -> int:
        """Machines that train together where nothing but the configuration says how many."""
        return 1 if self.nodes == "auto" else self.nodes

    @field_validator("beam_runner", mode="before")
    @classmethod
    def _refuse_runners(cls, value: object) -> object:
        key = str(value).lower().removesuffix("runner")
        if key in REFUSED_RUNNERS:
            raise ValueError(f"fnapi or dataflow ({value} is refused: {REFUSED_RUNNERS[key]})")
        return value
