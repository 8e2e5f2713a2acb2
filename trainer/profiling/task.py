"""The profile stage: `python -m trainer.profiling.task --root URI --shards URI --config URI ...`.

Finds the fastest slot size and number of loader workers on the real shards and the real network, diagnoses bottlenecks,
and writes a ProfileReport with traces (docs/profiling.md). It never changes train.global_batch_size. This process
imports no torch.

    task        this stage: reuse, report
    search      order of measurements, and choice of the settings
    runner      starts the ranks, budget, restart after a crash; worker: one rank; bench: its measurements
    trace       records and reads traces; flops, diagnosis: indicators and rules
    board       TensorBoard's files
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from pathlib import Path

from contracts import storage
from contracts.artifacts import FileEntry, ProfileChoice, ProfileReport, ShardManifest, TrainingEstimate
from contracts.artifacts.profile import SUMMARY_NAME, summaries_to_json
from contracts.errors import DataError
from contracts.fingerprint import model_fingerprint, profile_inputs
from contracts.process import run_process, threads_per_rank
from contracts.stage import Output, Stage, run_stage
from trainer.data.shard_cache import check_room
from trainer.export.inputs import check_export_of_run
from trainer.launch import hardware, num_gpus, num_ranks
from trainer.launch.choices import choose_threads
from trainer.launch.nodes import Nodes
from trainer.profiling.diagnosis import diagnose
from trainer.profiling.runner import TRACE_FOLDER, Measurement, find_machines, measure
from trainer.profiling.search import Result, default_settings, make_space
from trainer.profiling.trace import summarise
from trainer.tasks.shard_checks import load_shards
from trainer.weights.previous import with_arguments_of_weights

BOARD_FOLDER = "tensorboard"


def execute(stage: Stage) -> str:
    """Measure, choose settings, and commit the report; return the URI of its folder."""
    shards_uri, config = stage.require("shards"), stage.config
    is_off, ranks = config.profile.method == "off", num_ranks(config)
    nodes = find_machines({} if is_off else os.environ, config.resources)
    world_size = ranks * max(nodes.nodes, config.resources.num_nodes)
    shards = load_shards(shards_uri, config, ranks=world_size)
    check_export_of_run(stage, shards)
    stage.config = config = with_arguments_of_weights(stage)
    cores, on_gpu = threads_per_rank(ranks), num_gpus() > 0
    if not is_off:
        # Raises configuration errors before the ranks start, and also if a report is reused.
        make_space(config, ranks=world_size, cores_per_rank=cores, on_gpu=on_gpu)
    torch_version = importlib.metadata.version("torch")
    made_from = profile_inputs(config, shards=shards.fingerprint, hardware=hardware(), torch_version=torch_version)
    output = stage.claim(ProfileReport, made_from, joins=not nodes.is_primary)
    if output.reused:
        return output.uri
    default = default_settings(config, ranks=world_size, cores_per_rank=cores, on_gpu=on_gpu)
    if is_off:
        choice = ProfileChoice(**dict(default), reason="the defaults: profile is off", measured=False)
        report = _report(stage, output, shards, ranks, nodes, Measurement(0.0, Result(choice=choice)))
        stage.commit(output, report, "off: nothing is measured")
        return output.uri
    if ignored := check_room(shards_uri, config.data, shards):
        stage.log(f"warning: {ignored}")
    threads, warning = choose_threads(config, ranks=ranks)
    if warning:
        stage.log(f"warning: {warning}")
    with tempfile.TemporaryDirectory(prefix="shardline-profile-") as name:
        scratch = Path(name)
        measurement = measure(
            stage,
            output,
            shards=shards_uri,
            nodes=nodes,
            ranks=ranks,
            threads=threads,
            scratch=scratch,
        )
        if measurement is None:
            return output.uri
        if measurement.result is None:
            reason = f"profile.budget_s {config.profile.budget_s:g} ended before the ranks started"
            choice = ProfileChoice(**dict(default), reason=f"the defaults: {reason}", measured=False)
            warning = f"{reason}: training uses the defaults; to do: raise it, or set profile: off"
            measurement = Measurement(measurement.wall_s, Result(choice=choice, warnings=[warning]))
        report = _report(stage, output, shards, ranks, nodes, measurement)
        report = _add_files(stage, output, report, measurement, scratch)
    for warning in report.warnings:
        stage.log(f"warning: {warning}")
    for finding in report.findings:
        stage.log(f"{finding.rule} {finding.title}: {finding.change}")
    choice = report.choice
    stage.log(f"slot_size {choice.slot_size}, num_workers {choice.num_workers}: {choice.reason}")
    summary = f"slot size {choice.slot_size}, workers {choice.num_workers}, measured settings: {len(report.points)}"
    stage.commit(output, report, summary if choice.measured else f"{summary}, the defaults: not measured")
    return output.uri


def _report(
    stage: Stage, output: Output, shards: ShardManifest, ranks: int, nodes: Nodes, measurement: Measurement
) -> ProfileReport:
    config, result = stage.config, measurement.result
    assert result is not None
    warnings, estimate = [*result.warnings, *measurement.warnings], None
    settings = result.choice.settings()
    rate = next((point.samples_per_s for point in result.points if point.settings() == settings), None)
    if rate is not None and nodes.nodes >= config.resources.num_nodes:
        samples = shards.splits["train"].samples
        estimate = TrainingEstimate.of(config, epoch_samples=samples, samples_per_s=rate * ranks * nodes.nodes)
    elif rate is not None:
        warnings.append(
            f"one machine was measured for {config.resources.num_nodes} (resources.nodes): the exchange of gradients "
            "between them is not part of the rates, and the time of the training is unknown"
        )
    return ProfileReport(
        fingerprint=output.fingerprint,
        made_from=output.made_from,
        model_fingerprint=model_fingerprint(config),
        shards_fingerprint=shards.fingerprint,
        hardware=hardware(),
        torch_version=importlib.metadata.version("torch"),
        ranks=ranks,
        threads_per_rank=choose_threads(config, ranks=ranks)[0],
        global_batch_size=config.train.global_batch_size,
        method=config.profile.method,
        wall_s=measurement.wall_s,
        estimate=estimate,
        measured_nodes=nodes.nodes,
        **{**dict(result), "warnings": warnings},
    )


def _add_files(
    stage: Stage, output: Output, report: ProfileReport, measurement: Measurement, scratch: Path
) -> ProfileReport:
    """Diagnose the traces and write the files of the report; return the report with findings and files."""
    traces = sorted((scratch / TRACE_FOLDER).glob("*.json.gz"))
    warnings, summaries = list(report.warnings), []
    if measurement.device is not None and measurement.counters:
        try:
            summaries = [summarise(path) for path in traces]
        except DataError as error:
            warnings.append(f"the traces cannot be read: {error}")
        indicators, findings = diagnose(
            stage.config,
            report.choice,
            measurement.device,
            measurement.counters,
            summaries,
            loader=report.loader,
            compute=report.compute,
        )
        report = report.model_copy(update={"indicators": indicators, "findings": findings})
    folder = scratch / "out"
    folder.mkdir()
    if summaries:
        (folder / SUMMARY_NAME).write_bytes(summaries_to_json(summaries))
    if report.choice.measured:
        # Importing TensorBoard takes a second.
        from trainer.profiling.board import write_board

        write_board(folder / BOARD_FOLDER, report)
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    paths |= {f"{TRACE_FOLDER}/{path.name}": path for path in traces}
    for name, path in paths.items():
        storage.replace(storage.join(output.uri, *name.split("/")), path.read_bytes())
    files = [FileEntry.of(output.uri, name) for name in sorted(paths)]
    return report.model_copy(update={"warnings": warnings, "files": files})


if __name__ == "__main__":
    run_process(lambda: run_stage("profile", execute))
