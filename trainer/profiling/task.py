"""The profiling stage: `python -m trainer.profiling.task --root URI --shards URI --config URI ...`.

Measures on the real shards and the real network, in processes that train as ranks do, how to cut the global batch and
how to load it; says what is slow and why; and writes a ProfileReport, traces and a page. This process imports no torch.
It never changes train.global_batch_size. docs/profiling.md tells how.

    task           this stage: reuse, processes, report
    space          what may be tried
    sweep          which of it is measured, and what is taken; predict, pairs: its parts
    probe          asks the processes; probe_process, service, bench, tracing: what they do
    trace          a trace into numbers; indicators, rules: numbers into findings
    page, board    findings and numbers into HTML and TensorBoard
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

from contracts import storage
from contracts.artifacts import FileEntry, ProfileReport, ShardManifest, TrainingEstimate
from contracts.artifacts.profile import PAGE_NAME
from contracts.config import RunConfig
from contracts.errors import Preempted
from contracts.estimate import estimate_training
from contracts.fingerprint import model_fingerprint, profile_inputs
from contracts.process import run_process, threads_per_rank
from contracts.stage import Output, Stage, run_stage
from trainer.data.shards import check_index, check_room, load_shards
from trainer.launch import RANKS_VARIABLE, hardware, num_gpus, num_ranks
from trainer.profiling.diagnosis import diagnose_choice
from trainer.profiling.page import render_page
from trainer.profiling.probe import RankProbe
from trainer.profiling.scratch import scratch_folder
from trainer.profiling.space import Device, make_space
from trainer.profiling.sweep import Result, full_grid, sweep

BOARD_FOLDER = "tensorboard"
TRACE_FOLDER = "traces"


def execute(stage: Stage) -> str:
    """Measure, choose, say why, and commit the report."""
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
    with _stops_on_sigterm(), scratch_folder() as scratch:
        folder, probe = (
            scratch / "out",
            RankProbe(
                stage.config,
                shards=shards_uri,
                ranks=ranks,
                threads=threads_per_rank(ranks),
                nodes=nodes,
                folder=scratch / "probe",
            ),
        )
        folder.mkdir()
        report = _profile(stage, output, shards, probe, folder)
        files = _publish(output.uri, folder)
    report = report.model_copy(update={"files": files})
    choice = report.choice
    stage.commit(
        output,
        report,
        f"slot size {choice.slot_size}, {choice.num_workers} workers, {len(report.points)} points, "
        f"{len(report.findings)} findings",
    )
    return output.uri


@contextmanager
def _stops_on_sigterm() -> Iterator[None]:
    """End with an exception when told to stop, so that folders and processes go, too.

    Raises:
        Preempted: A SIGTERM came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> NoReturn:
        # The next one must not end what cleans up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Preempted("SIGTERM came: nothing of this profiling run is kept; the same command begins it anew")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _profile(stage: Stage, output: Output, shards: ShardManifest, probe: RankProbe, folder: Path) -> ProfileReport:
    """Measure and diagnose; leave the files beside the report in `folder`."""
    config, ranks, world_size = stage.config, probe.assignment.ranks, probe.assignment.world_size
    space_on = partial(make_space, config, ranks=world_size, cores_per_rank=threads_per_rank(ranks))
    # For its errors: most of them are known before seconds are spent on a start.
    space_on(device=Device("cuda" if num_gpus() else "cpu", "this machine", has_bf16=True))
    with probe:
        stage.ready()
        hello = probe.device
        space = space_on(device=Device(hello.kind, hello.name, hello.has_bf16))
        measure = full_grid if config.profile.method == "grid" else sweep
        result = measure(
            space,
            probe,
            budget_s=config.profile.budget_s,
            tell=lambda done, total, message: stage.progress(done, total, "measurements", message),
            price_usd_per_h=config.resources.price_usd_per_h,
        )
        wall_s = probe.now()
        choice = result.choice
        for warning in result.warnings:
            stage.log(f"warning: {warning}")
        stage.log(f"slot_size {choice.slot_size}, num_workers {choice.num_workers}: {choice.reason}")
        diagnosis = diagnose_choice(config, probe, result, hello=hello, folder=folder / TRACE_FOLDER)
        for warning in diagnosis.warnings:
            stage.log(f"warning: {warning}")
        for finding in diagnosis.findings:
            stage.log(f"{finding.rule} {finding.title}: {finding.change}")
        report = ProfileReport(
            fingerprint=output.fingerprint,
            made_from=output.made_from,
            model_fingerprint=model_fingerprint(config),
            shards_fingerprint=shards.fingerprint,
            hardware=hardware(),
            torch_version=importlib.metadata.version("torch"),
            ranks=ranks,
            threads_per_rank=choice.threads,
            global_batch_size=config.train.global_batch_size,
            points=result.points,
            choice=choice,
            method=config.profile.method,
            wall_s=wall_s,
            loader=result.loader,
            compute=result.compute,
            memory=result.memory,
            overlap=result.overlap,
            predictor_error=result.predictor_error,
            recommendations=result.recommendations,
            indicators=diagnosis.indicators,
            findings=diagnosis.findings,
            estimate=_estimate(config, shards, result, world_size),
            warnings=[*result.warnings, *diagnosis.warnings],
        )
        if (failed := probe.write_board(folder / BOARD_FOLDER, report)) is not None:
            stage.log(f"warning: nothing for TensorBoard: {failed.outcome}: {failed.reason}")
    (folder / PAGE_NAME).write_text(render_page(report, diagnosis.summaries), encoding="utf-8")
    return report


def _estimate(config: RunConfig, shards: ShardManifest, result: Result, ranks: int) -> TrainingEstimate | None:
    """Return what the whole training takes, steps only; `ranks` are those of all machines."""
    choice = result.choice
    rate = next(
        (
            point.samples_per_s
            for point in result.points
            if point.samples_per_s is not None
            and (point.slot_size, point.num_workers, point.prefetch_factor, point.threads, point.flags)
            == (choice.slot_size, choice.num_workers, choice.prefetch_factor, choice.threads, choice.flags)
        ),
        None,
    )
    if rate is None:
        return None
    return estimate_training(config, epoch_samples=shards.splits["train"].samples, samples_per_s=rate * ranks)


def _publish(output_uri: str, folder: Path) -> list[FileEntry]:
    """Copy all files of a folder to the output; the report that is committed after them speaks for them."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for name in names:
        # An attempt that was killed may have left some.
        storage.replace(storage.join(output_uri, *name.split("/")), (folder / name).read_bytes())
    return [FileEntry.of(output_uri, name) for name in names]


if __name__ == "__main__":
    run_process(lambda: run_stage("profile", execute))
