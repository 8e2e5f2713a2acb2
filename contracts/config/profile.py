"""Section `profile`: what the profiling run tries, and how long it may take.

A knob has one place where it is set (`data.num_workers`, `train.precision`, ...) and one list here of what is tried for
it. What is set there is pinned: it is the only value, and must be in the list here where one is given. What is `auto`
there is chosen by the profiling run. Flags of `train` that are set are held in training all the same; the profiling run
measures the others beside them and says what they would bring.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.config.base import Auto, NotBool, PositiveInt, Section

Knob = Literal[
    "slot_size",
    "num_workers",
    "prefetch_factor",
    "threads",
    "precision",
    "channels_last",
    "compile",
    "activation_checkpointing",
]


def read_off(value: object) -> object:
    """Return the section that `profile: off` stands for; anything else as it is."""
    # False: `profile: false` says the same.
    return {"method": "off"} if value is False or value == "off" else value


class ProfileSection(Section):
    """What the profiling run tries, and how long it may take."""

    method: Literal["sweep", "grid", "off"] = "sweep"
    """`sweep`: measure loader and computing apart, predict, and measure the best of them end to end. `grid`: measure
    every combination end to end, for comparison (`--full-grid`). `off`: measure nothing, and take the defaults
    (`profile: off` in a file says the same)."""
    budget_s: Annotated[float, Field(ge=1, le=86400), NotBool] = 600
    """Seconds for all of it (`--budget`): the start of the processes, measuring, traces and the report. No measurement
    is begun that would end later, and one that does not end by then is given up: the best that was found is taken, or
    the defaults where fewer than two configurations were measured, with a warning."""
    slot_sizes: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Slot sizes to try; `auto`: an even share of the global batch per rank, and what is left when it is cut in 2, 4,
    8, ... slots, and the largest that fits into memory."""
    min_batch_norm_slot: PositiveInt = 16
    """Smallest slot size that is chosen for a network with BatchNorm, whose statistics are those of a slot; what
    parallel.slot_size or profile.slot_sizes name is taken all the same."""
    num_workers: Annotated[list[Annotated[int, Field(strict=True, ge=0, le=256)]], Field(min_length=1)] | Auto = "auto"
    """Numbers of loader processes to try; `auto`: 0, 1, 2, ... doubling below the cores of a rank, and those cores."""
    prefetch_factors: Annotated[list[Annotated[int, Field(strict=True, ge=1, le=64)]], Field(min_length=1)] | Auto = (
        "auto"
    )
    """Slots that each loader process prepares ahead, to try; `auto`: 2 and 4."""
    threads: Annotated[list[PositiveInt], Field(min_length=1)] | Auto = "auto"
    """Intra-op threads of a rank to try; `auto`: without a GPU the cores of a rank, and halves of it; with one, those
    cores."""
    precisions: Annotated[list[Literal["fp32", "bf16", "fp16"]], Field(min_length=1)] | Auto = "auto"
    """Precisions to try; `auto`: fp32 and bf16 where this hardware computes in bf16, else fp16 on a GPU."""
    channels_last: Annotated[list[bool], Field(min_length=1)] | Auto = "auto"
    """Memory layouts to try; `auto`: both."""
    compile: Annotated[list[bool], Field(min_length=1)] | Auto = "auto"
    """Whether torch.compile is tried; `auto`: on a GPU. It takes minutes, on a CPU with little to gain."""
    activation_checkpointing: Annotated[list[Literal["none", "whole"]], Field(min_length=1)] | Auto = "auto"
    """Kinds of activation checkpointing to try; `auto`: none, and whole where the slot that would be taken without a
    limit of memory does not fit."""
    exclude: list[Knob] = []
    """Knobs that are not tried at all: they keep the value that training would have without a profile."""
    window_s: Annotated[float, Field(ge=0.05, le=60), NotBool] = 0.5
    """Length of one window of measurement, in seconds; a rate is the median over windows."""
    probe_timeout_s: Annotated[float, Field(ge=1, le=3600), NotBool] = 120
    """Seconds after which a measurement that has not ended counts as hung: its processes are killed and replaced."""
    memory_bytes: PositiveInt | None = None
    """Most memory of a rank in bytes, that measurements are held to: on a GPU the allocator's, without one the data of
    the process (RLIMIT_DATA). Unset: what is there."""
    trace_steps: Annotated[int, Field(strict=True, ge=0, le=50)] = 4
    """Optimizer steps of the chosen configuration that are traced for the diagnosis; 0: none."""
