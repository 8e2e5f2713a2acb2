"""The profiling stage: `python -m trainer.profiling.task --root URI --shards URI --config URI ...`.

Measures on the real shards and the real network, in processes that train as ranks do, how to cut the global batch and
how to load it; says what is slow and why; and writes a ProfileReport and traces. This process imports no torch.
It never changes train.global_batch_size. docs/profiling.md tells how.

    task           this stage: reuse, processes, report
    followed       the report that a finished training followed
    space          what may be tried
    sweep          which of it is measured, and what is taken; parts, predict, pairs: how; grid: all of it
    probe          asks the processes; service, bench, tracing: what they do; machines: those of other machines
    trace          a trace into numbers; indicators, rules: numbers into findings
    board          numbers into TensorBoard (inspection/profile_page.py makes the page)
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from contracts import storage
from contracts.artifacts import FileEntry, ProfileChoice, ProfileReport, ShardManifest, TrainingEstimate
from contracts.artifacts.trace import SUMMARY_NAME, summaries_to_json
from contracts.config import RunConfig
from contracts.errors import Preempted
from contracts.fingerprint import model_fingerprint, profile_inputs
from contracts.process import run_process, threads_per_rank
from contracts.stage import Output, Stage, run_stage
from trainer.data.shard_cache import check_room
from trainer.export.needs import check_export_of_run
from trainer.launch import hardware, num_gpus, num_ranks
from trainer.profiling.diagnosis import Diagnosis, diagnose_choice
from trainer.profiling.followed import find_followed
from trainer.profiling.grid import full_grid
from trainer.profiling.ledger import Ledger, Result
from trainer.profiling.machines import Machines, find_place, follow
from trainer.profiling.measure import Device
from trainer.profiling.probe import RankProbe, StartTooLong
from trainer.profiling.scratch import scratch_folder
from trainer.profiling.space import Space, default_settings, make_space
from trainer.profiling.sweep import sweep
from trainer.tasks.shard_checks import load_shards
from trainer.weights.previous import with_arguments_of_weights

BOARD_FOLDER = "tensorboard"
TRACE_FOLDER = "traces"
# Share of profile.budget_s that is kept for traces and the report at most.
MOST_RESERVED = 0.25


def execute(stage: Stage) -> str:
    """Measure, choose, say why, and commit the report."""
    shards_uri = stage.require("shards")
    ranks = num_ranks(stage.config)
    is_off = stage.config.profile.method == "off"
    place = find_place({} if is_off else os.environ, stage.config.resources)
    nodes = place.nodes if place.nodes > 1 else stage.config.resources.num_nodes
    shards = load_shards(shards_uri, stage.config, ranks=ranks * nodes)
    check_export_of_run(stage, shards)
    stage.config = with_arguments_of_weights(stage)
    followed = None
    # Unless it is asked for anew, or for a folder of its own. A training that asks for its own (`--locate`) is not
    # finished, or needs none.
    if not stage.fresh and not stage.locate and stage.root is not None:
        followed = find_followed(stage.root, stage.config, shards=shards.fingerprint)
    if followed is not None:
        stage.log(f"{storage.display(followed.uri)} is reused, as {followed.reason}: --fresh measures again")
        stage.events.emit("folder", uri=followed.uri, fingerprint=followed.report.fingerprint)
        stage.events.emit("reused", uri=followed.uri)
        return followed.uri
    made_from = profile_inputs(
        stage.config,
        shards=shards.fingerprint,
        hardware=hardware(),
        torch_version=importlib.metadata.version("torch"),
    )
    output = stage.claim(ProfileReport, made_from, joins=not place.is_primary)
    if output.reused:
        return output.uri
    if is_off:
        stage.commit(output, _off_report(stage, output, shards, ranks, nodes), "off: nothing is measured")
        return output.uri
    if ignored := check_room(shards_uri, stage.config.data, shards):
        stage.log(f"warning: {ignored}")
    with _stops_on_sigterm(), scratch_folder() as scratch:
        key, resources = output.fingerprint, stage.config.resources
        if not place.is_primary:
            stage.ready()
            follow(place, key=key, resources=resources, folder=scratch, say=stage.log)
            return output.uri
        # The other machines of the job measure with this one.
        others = Machines(place, key=key, resources=resources, say=stage.log) if place.nodes > 1 else nullcontext()
        with others as machines:
            probe = RankProbe(
                stage.config,
                shards=shards_uri,
                ranks=ranks,
                threads=threads_per_rank(ranks),
                nodes=nodes,
                machines=machines,
                folder=scratch / "probe",
                budget_s=stage.config.profile.budget_s,
            )
            folder = scratch / "out"
            folder.mkdir()
            report = _profile(stage, output, shards, probe, folder)
            files = _publish(output.uri, folder)
            report = report.model_copy(update={"files": files})
            choice = report.choice
            made = f"slot size {choice.slot_size}, {choice.num_workers} workers, {len(report.points)} points"
            made += f", {len(report.findings)} findings" if choice.measured else ", the defaults: not measured"
            stage.commit(output, report, made)
    return output.uri


def _off_report(stage: Stage, output: Output, shards: ShardManifest, ranks: int, nodes: int) -> ProfileReport:
    """Return the report of `profile: off`: the defaults."""
    result = _nothing_measured(stage.config, ranks, nodes, reason="the defaults: profile is off")
    return _report(stage, output, shards, result, Diagnosis(), ranks=ranks, machine=hardware())


def _nothing_measured(
    config: RunConfig, ranks: int, nodes: int, *, reason: str, warnings: Sequence[str] = ()
) -> Result:
    cores, on_gpu = threads_per_rank(ranks), num_gpus() > 0
    settings = default_settings(config, ranks=ranks * nodes, cores_per_rank=cores, on_gpu=on_gpu)
    choice = ProfileChoice(**dict(settings), reason=reason, measured=False, clear=False)
    return Result(choice, warnings=list(warnings))


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
    config, ranks, nodes = stage.config, probe.assignment.ranks, probe.assignment.nodes
    # For its errors: most of them are known before seconds are spent on a start.
    _space(config, probe, Device("cuda" if num_gpus() else "cpu", "this machine", has_bf16=True))
    budget = f"profile.budget_s {config.profile.budget_s:g}"
    # Where there is no time for traces, nothing was found that they would explain.
    diagnosis = Diagnosis()
    try:
        with probe:
            stage.ready()
            # Networks are built again for a trace, and the report is written: about as long as the start took.
            reserved_s = min(probe.now(), MOST_RESERVED * config.profile.budget_s)
            result = _measure(stage, probe, reserved_s)
            _tell(stage, result)
            if result.choice.measured and probe.now() > config.profile.budget_s:
                warning = f"{budget} left no time for traces, which say what is slow; to do: raise it"
                diagnosis = Diagnosis(warnings=[warning])
            elif result.choice.measured:
                diagnosis = diagnose_choice(config, probe, result, hello=probe.device, folder=folder / TRACE_FOLDER)
    except StartTooLong:
        stage.ready()
        ended = f"{budget} ended before the processes had started"
        warning = (
            f"{ended}: training has its defaults, as without a profile; to do: raise profile.budget_s, or "
            "set profile: off, which measures nothing"
        )
        result = _nothing_measured(config, ranks, nodes, reason=f"the defaults: {ended}", warnings=[warning])
        _tell(stage, result)
    report = _report(
        stage, output, shards, result, diagnosis, ranks=ranks, machine=hardware(), probe=probe, wall_s=probe.now()
    )
    for warning in report.warnings[len(result.warnings) :]:
        stage.log(f"warning: {warning}")
    if (ratio := diagnosis.indicators.profiler_ratio) is not None:
        stage.log(
            f"traced steps took {ratio:.2f} times as long as others: shares of a step are of those, rates are not"
        )
    for finding in diagnosis.findings:
        tried = f"; try: {finding.command}" if finding.command else ""
        stage.log(f"{finding.rule} {finding.title}: {finding.change}{tried}")
    if result.choice.measured:
        _write_board(stage, folder, report)
    if diagnosis.summaries:
        (folder / SUMMARY_NAME).write_bytes(summaries_to_json(diagnosis.summaries))
    return report


def _write_board(stage: Stage, folder: Path, report: ProfileReport) -> None:
    """Write the sweep for TensorBoard; what fails there costs no report."""
    try:
        from trainer.profiling.board import write_board

        write_board(folder / BOARD_FOLDER, report)
    except Exception as error:  # noqa: BLE001 - whatever TensorBoard's package raises
        stage.log(f"warning: nothing for TensorBoard: {type(error).__name__}: {error}")


def _space(config: RunConfig, probe: RankProbe, device: Device) -> Space:
    ranks, cores = probe.assignment.world_size, threads_per_rank(probe.assignment.ranks)
    return make_space(config, ranks=ranks, cores_per_rank=cores, device=device)


def _measure(stage: Stage, probe: RankProbe, reserved_s: float) -> Result:
    config = stage.config
    ledger = Ledger(
        _space(config, probe, probe.device),
        probe,
        budget_s=config.profile.budget_s,
        tell=lambda done, total, message: stage.progress(done, total, "measurements", message),
        price_usd_per_h=config.resources.price_usd_per_h,
        start_s=probe.now(),
        reserved_s=reserved_s,
    )
    return full_grid(ledger) if config.profile.method == "grid" else sweep(ledger)


def _tell(stage: Stage, result: Result) -> None:
    for warning in result.warnings:
        stage.log(f"warning: {warning}")
    choice = result.choice
    stage.log(f"slot_size {choice.slot_size}, num_workers {choice.num_workers}: {choice.reason}")


def _report(
    stage: Stage,
    output: Output,
    shards: ShardManifest,
    result: Result,
    diagnosis: Diagnosis,
    *,
    ranks: int,
    machine: dict[str, str],
    probe: RankProbe | None = None,
    wall_s: float | None = None,
) -> ProfileReport:
    config, hello = stage.config, probe.hello if probe is not None else None
    measured_nodes = probe.measured_nodes if probe is not None and hello is not None else 1
    nodes = measured_nodes if measured_nodes > 1 else config.resources.num_nodes
    estimate, of_machines = None, []
    chosen = result.choice.settings()
    rate = next((point.samples_per_s for point in result.points if point.settings() == chosen), None)
    if rate is not None and nodes == measured_nodes:
        samples = shards.splits["train"].samples
        estimate = TrainingEstimate.of(config, epoch_samples=samples, samples_per_s=rate * ranks * nodes)
    elif rate is not None:
        of_machines.append(
            f"one machine was measured for {nodes} (resources.nodes): their exchange of gradients was not, and the "
            "time of the training is unknown"
        )
    found = vars(result) | {"warnings": [*result.warnings, *diagnosis.warnings, *of_machines]}
    return ProfileReport(
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        model_fingerprint=model_fingerprint(config),
        shards_fingerprint=shards.fingerprint,
        hardware=machine,
        torch_version=importlib.metadata.version("torch"),
        ranks=ranks,
        threads_per_rank=result.choice.threads,
        global_batch_size=config.train.global_batch_size,
        method=config.profile.method,
        wall_s=wall_s,
        indicators=diagnosis.indicators,
        findings=diagnosis.findings,
        estimate=estimate,
        measured_nodes=measured_nodes,
        **found,
    )


def _publish(output_uri: str, folder: Path) -> list[FileEntry]:
    """Copy all files of a folder to the output; the report that is committed after them speaks for them."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for name in names:
        # An attempt that was killed may have left some.
        storage.replace(storage.join(output_uri, *name.split("/")), (folder / name).read_bytes())
    return [FileEntry.of(output_uri, name) for name in names]


if __name__ == "__main__":
    run_process(lambda: run_stage("profile", execute))
