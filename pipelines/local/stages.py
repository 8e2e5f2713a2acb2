"""`shardline shard|profile|train|export`: one stage by itself, on the outputs of the ones before.

An input that is not given is the finished output of this configuration's earlier stage in the line's own folder; the
stage's own command finds it (`--locate`), since only a stage knows what its fingerprint holds.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

import typer

from components.launch import attempt_folder, last_line, stage_command, stage_environment
from contracts import storage
from contracts.config import STAGE_KEYS, RunConfig
from contracts.config.load import stage_config
from contracts.errors import EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR, ConfigError, ErrorDocument
from contracts.events import LOG_NAME, EventLog
from contracts.output import require_room
from contracts.own_code import pin_code
from contracts.stage import new_attempt_id
from inspection.trace import StageTrace
from pipelines.jobs import INPUTS
from pipelines.local.progress import make_view
from pipelines.local.shard_warnings import read_warnings
from pipelines.local.watch import find_interruption, watch
from pipelines.place import line_uri, stage_root
from pipelines.reported import StageFailed

# Training cuts the batch by itself when nothing was measured.
_OPTIONAL = ("profile",)


@dataclass(frozen=True)
class Made:
    """What a stage has left."""

    uri: str
    """Folder of the finished document."""
    reused: bool
    """It was finished before: nothing was done."""
    attempt: str
    """URI of the folder of this attempt: events, the log, and what is made for readers."""


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


def run_stage_alone(
    stage: str,
    config: RunConfig,
    *,
    output: str | None,
    given: Mapping[str, str | None],
    fresh: bool,
    debug: bool,
) -> Made:
    """Run one stage to its end and return what it left.

    Args:
        stage: Its name.
        config: The resolved configuration, with absolute paths.
        output: Path or URI of the folder to write; None: the line's own folder.
        given: Paths or URIs of inputs, by name; None: the line's own.
        fresh: Delete the stage's own output for this configuration first.
        debug: The stage shows its traceback.

    Raises:
        StageFailed: It failed, or what it reads is not there.
        UserError: A path or URI cannot be used, or a cost cap has no price.
    """
    if stage == "train":
        check_cost_cap(config)
    if "code" in STAGE_KEYS[stage]:
        # For what it refuses and warns of; the stage does it again, and makes the copy.
        for warning in pin_code(config, line_uri(config)).warnings:
            typer.echo(f"{stage}: warning: {warning}", err=True)
    inputs = locate_inputs(stage, config, given)
    attempt = new_attempt_id()
    if output is None:
        root = stage_root(config, stage)
        place = {"root": root}
    else:
        place = {"output": storage.normalise(output)}
        root = place["output"].rpartition("/")[0]
    trace = StageTrace(stage, attempt_folder(root, attempt))
    place["events"] = str(trace.folder)
    try:
        require_room(root)
        events = EventLog(trace.folder, stage=stage, attempt=attempt)
    except OSError as error:
        raise ConfigError(
            f"{storage.display(root)} cannot be written ({error.strerror})",
            allowed="a folder that you may write, or one that can be made",
            todo="set run.root, or --output, to another folder, or correct its permissions",
        ) from None
    wanted = {"fresh": fresh, "debug": debug}
    flags = " ".join(word for word, is_wanted in wanted.items() if is_wanted)
    launched_at = time.time()
    command = stage_command(
        stage, place=place, config=_config_option(stage, config), inputs=inputs, attempt=attempt, flags=flags
    )
    log, view = trace.folder / LOG_NAME, make_view([stage])
    ending = watch(
        command,
        stage_environment(),
        log,
        traces=[trace],
        view=view,
        stop_budget_s=config.resources.stop_budget_s,
    )
    events.emit("exit", exit_code=ending.exit_code, launched_at=launched_at, wall_s=ending.wall_s)
    list(trace.poll())
    if (failure := find_interruption(ending) or trace.find_error()) is not None:
        raise StageFailed(failure)
    # The shard stage has said its own.
    for warning in read_warnings(inputs["shards"]) if stage != "shard" else []:
        typer.echo(f"{stage}: warning: {warning}", err=True)
    if trace.uri is None:
        message = (
            f"stage {stage} ended with exit code {ending.exit_code}, and left no events in {trace.folder}\n"
            "  to do: see whether that disk is full, and run the same command again"
        )
        raise StageFailed(ErrorDocument(kind="Crash", exit_code=ending.exit_code or EXIT_FAULT, message=message))
    return Made(trace.uri, trace.reused, storage.normalise(trace.folder))


def locate_inputs(stage: str, config: RunConfig, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the URI of each input of a stage: what was given, else the line's own.

    Raises:
        StageFailed: An earlier stage has not run; the error says which.
    """
    inputs: dict[str, str] = {}
    for name, maker in INPUTS[stage].items():
        if (value := given.get(name)) is not None:
            inputs[name] = storage.normalise(value)
            continue
        try:
            inputs[name] = _locate(maker, config, inputs)
        except StageFailed as failure:
            if name not in _OPTIONAL or failure.error.exit_code != EXIT_USER_ERROR:
                raise
            typer.echo(f"{stage}: goes on without a {name}: {failure.error.message.splitlines()[0]}", err=True)
    return inputs


def describe_shards(config: RunConfig) -> str:
    """Return in words what the shard stage would write, as its own command knows it.

    Raises:
        StageFailed: The source cannot be used.
    """
    return (
        _ask(
            "shard",
            stage_command(
                "shard",
                place={"root": stage_root(config, "shard")},
                config=_config_option("shard", config),
                inputs={},
                flags="dry-run",
            ),
        )
        .decode()
        .rstrip()
    )


def _locate(stage: str, config: RunConfig, found: Mapping[str, str]) -> str:
    """Ask a stage's command where its finished output is."""
    inputs = {name: found[name] for name in INPUTS[stage] if name in found}
    missing = {name: None for name in INPUTS[stage] if name not in found and name not in _OPTIONAL}
    inputs |= locate_inputs(stage, config, missing) if missing else {}
    command = stage_command(
        stage,
        place={"root": stage_root(config, stage)},
        config=_config_option(stage, config),
        inputs=inputs,
        flags="locate",
    )
    return last_line(_ask(stage, command))


def _ask(stage: str, command: list[str]) -> bytes:
    """Run a stage's command that only answers, and return what it printed.

    Raises:
        StageFailed: It said no.
    """
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=stage_environment(), check=False
    )
    if answer.returncode == EXIT_OK:
        return answer.stdout
    said = answer.stderr.decode(errors="replace").strip()
    # A stage's last words are `NAME: error: MESSAGE`, over several lines; warnings of libraries may stand before.
    message = said.rpartition(f"{stage}: error: ")[2] or f"the command of stage {stage} ended with {answer.returncode}"
    raise StageFailed(ErrorDocument(kind="Answer", exit_code=abs(answer.returncode), message=message))


def _config_option(stage: str, config: RunConfig) -> dict[str, str]:
    return {"config-json": json.dumps(stage_config(config, stage))}
