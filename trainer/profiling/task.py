"""The profiling stage: `python -m trainer.profiling.task --root URI --shards URI --config URI ...`.

Measures slot sizes and loader processes on the real shards and the real model, in one process that has a rank's share
of the cores, and writes a ProfileReport. It never changes train.global_batch_size.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator

from contracts.artifacts import ProfilePoint, ProfileReport, ShardManifest
from contracts.fingerprint import model_fingerprint, profile_inputs
from contracts.process import available_cores, run_process, threads_per_rank
from contracts.stage import Stage, run_stage
from trainer.launch import RANKS_VARIABLE, hardware, num_ranks
from trainer.order import make_order, resolve_order
from trainer.profiling.sweep import candidate_num_workers, candidate_slot_sizes, choose
from trainer.shards import check_index, check_room, load_shards


def execute(stage: Stage) -> str:
    """Measure every candidate and commit the report."""
    shards_uri = stage.require("shards")
    ranks = 1 if stage.where else num_ranks(stage.config)
    if not stage.where and RANKS_VARIABLE in os.environ:
        stage.log(f"{ranks} ranks on this machine: {RANKS_VARIABLE}, a rehearsal's, wins over resources.ranks")
    nodes = 1 if stage.config.resources.nodes == "auto" else stage.config.resources.nodes
    # Who only looks is on another machine, whose ranks say nothing.
    shards = load_shards(shards_uri, stage.config.data, ranks=1 if stage.where else ranks * nodes)
    machine = hardware()
    made_from = profile_inputs(
        stage.config,
        shards=shards.fingerprint,
        # A task that only looks for the report has neither the machine nor torch.
        hardware=machine if stage.machine is None else {"machine": stage.machine},
        torch_version=stage.software or importlib.metadata.version("torch"),
    )
    output = stage.claim(ProfileReport, made_from)
    if output.reused or stage.where:
        return output.uri
    check_index(shards_uri, shards)
    if ignored := check_room(shards_uri, stage.config.data, shards):
        stage.log(f"warning: {ignored}")
    threads = threads_per_rank(ranks)
    _take_share_of_cores(ranks)

    slot_sizes = candidate_slot_sizes(stage.config, ranks * nodes)
    num_workers = candidate_num_workers(stage.config, available_cores())
    points = []
    for done, point in enumerate(_measure(stage, shards_uri, shards, slot_sizes, num_workers, threads), start=1):
        points.append(point)
        stage.progress(
            done,
            len(slot_sizes) * len(num_workers),
            "points",
            f"slot size {point.slot_size}, {point.num_workers} workers: {point.samples_per_s:.0f} samples/s",
        )
    choice = choose(points)
    stage.log(f"slot_size {choice.slot_size}, num_workers {choice.num_workers}: {choice.reason}")
    report = ProfileReport(
        fingerprint=output.fingerprint,
        made_from=made_from,
        model_fingerprint=model_fingerprint(stage.config),
        shards_fingerprint=shards.fingerprint,
        hardware=machine,
        torch_version=importlib.metadata.version("torch"),
        ranks=ranks,
        threads_per_rank=threads,
        global_batch_size=stage.config.train.global_batch_size,
        points=points,
        choice=choice,
    )
    stage.commit(output, report, f"slot size {choice.slot_size}, {choice.num_workers} workers, {len(points)} points")
    return output.uri


def _measure(
    stage: Stage,
    shards_uri: str,
    shards: ShardManifest,
    slot_sizes: list[int],
    num_workers: list[int],
    threads: int,
) -> Iterator[ProfilePoint]:
    """Yield the points as they are measured; torch is imported here, after the cores are taken."""
    import torch

    from trainer.data.loader import SlotDataset
    from trainer.data.reader import ShardReader
    from trainer.data.transforms import make_transforms
    from trainer.network import make_network
    from trainer.precision import Numerics
    from trainer.profiling.probe import measure_point

    torch.set_num_threads(threads)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    config = stage.config
    numerics = Numerics.of(config.train)
    numerics.check(device, allow_slow=config.train.allow_slow_precision)
    numerics.apply(device)
    model = make_network(config, len(shards.classes), device, numerics, stage.log)
    transform, _ = make_transforms(config.data, shards)
    dataset = SlotDataset(
        ShardReader(shards_uri, shards, "train", config.data),
        transform,
        config.run.seed,
        replace_bad=config.data.on_bad_sample == "replace",
    )
    choice = resolve_order(config.data, shards_uri, shards, None)
    index_uri = dataset.reader.index_uri
    order = make_order(choice.order, shards_uri, shards, seed=config.run.seed, index_uri=index_uri)
    stage.ready()
    for slot_size in slot_sizes:
        for workers in num_workers:
            yield measure_point(
                config,
                numerics,
                model,
                dataset,
                order,
                slot_size=slot_size,
                num_workers=workers,
                ranks=num_ranks(config),
                device=device,
            )


def _take_share_of_cores(ranks: int) -> None:
    """Keep this process and its loader processes to the cores that one rank will have.

    A single probe on an idle machine sees loader processes for free that must share cores with the other ranks later.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[: max(1, len(cores) // ranks)]))


if __name__ == "__main__":
    run_process(lambda: run_stage("profile", execute))
