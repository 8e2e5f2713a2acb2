"""Checks before the first stage: the stages' own, asked by command.

    trainer.check network    own code, network and arguments, patterns of names, weights
    trainer.check place      precision, spread over ranks, export targets

For `shardline run` they are about this machine, for `plan` and `submit` about the machines of Vertex AI. A check that
fails, or takes too long, refuses nothing: it is a warning.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from components.launch import last_line, stage_environment
from contracts import storage
from contracts.checked import THIS_MACHINE, CheckAnswer, PlannedMachine, PlannedPlace, Unchecked
from contracts.config import RunConfig
from contracts.config.load import with_data_date
from contracts.machines import ACCELERATORS, Machine
from contracts.own_code import named_code
from contracts.previous import PREVIOUS, find_previous
from pipelines.rules.problem import Problem

TIMEOUT_S = 120.0
_NETWORK = ("trainer.check", "network")
_PLACE = ("trainer.check", "place")
_ABOUT: dict[tuple[str, ...], str] = {
    _NETWORK: "own code, network, weights",
    _PLACE: "precision, the spread over ranks, export targets",
}


@dataclass(frozen=True)
class Checked:
    """What was found."""

    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]

    def require(self, say: Callable[[str], None]) -> None:
        """Say all warnings, and raise what is wrong.

        Args:
            say: Takes a line.

        Raises:
            ConfigError: Something is; of several problems all but the last are said before.
        """
        for text in self.warnings:
            say(f"warning: {text}")
        for problem in self.problems[:-1]:
            say(f"error: {problem.error()}")
        if self.problems:
            raise self.problems[-1].error()


def check_here(config: RunConfig) -> Checked:
    """Check a line that is to run on this machine, whose source may be in a bucket."""
    return _check(config, THIS_MACHINE, online=True)


def check_planned(
    config: RunConfig, training: Machine, export: Machine, nodes: int, *, online: bool = False
) -> Checked:
    """Check a line that is to run on Vertex AI.

    Args:
        config: The resolved configuration.
        training: Machine of profile and train.
        export: Machine of the export.
        nodes: Machines that train together.
        online: Whether buckets may be asked.
    """
    place = PlannedPlace(training=_describe(training), export=_describe(export), nodes=nodes)
    return _check(config, place.model_dump_json(), online=online)


def _check(config: RunConfig, place: str, *, online: bool) -> Checked:
    config = _with_previous(with_data_date(config, ""))
    network = _config_option(_sections_of_network(config))
    if online and _is_remote(config.model.weights):
        network.append("--online")
    if place != THIS_MACHINE:
        network.append("--elsewhere")
    answers = [
        _ask(_NETWORK, network),
        _ask(_PLACE, [*_config_option(_sections_of_place(config)), f"--for={place}"]),
    ]
    return Checked(
        tuple(Problem(found.given, found.allowed, found.todo) for answer in answers for found in answer.problems),
        tuple(text for answer in answers for text in (*answer.warnings, *map(str, answer.unchecked))),
    )


def _with_previous(config: RunConfig) -> RunConfig:
    """Return the configuration with the weights that its word stands for now, where the line is on this machine."""
    root = storage.normalise(config.run.root)
    if config.model.weights != PREVIOUS or not storage.is_local(root):
        return config
    found = find_previous(storage.join(root, config.run.name)) or ""
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": found})})


def _is_remote(uri: str) -> bool:
    return "://" in uri and not storage.is_local(uri)


def _config_option(sections: object) -> list[str]:
    return [f"--config-json={json.dumps(sections, sort_keys=True)}"]


def _sections_of_network(config: RunConfig) -> dict[str, object]:
    """Return the parts of the configuration that the check looks at."""
    data, train = {"image_size", "transform"}, {"learning_rates"}
    own: dict[str, object] = {}
    if named_code(config):
        own["code"] = config.code.model_dump(mode="json")
        own["run"] = config.run.model_dump(mode="json", include={"name", "root"})
    if config.task.is_own:
        # Its class may look at any of them.
        sections = {"model", "task", "data", "train", "checkpoint"}
        return own | config.model_dump(mode="json", include=sections) | _fields_of(config)
    # What may name a metric.
    if config.checkpoint.best_metric:
        own["checkpoint"] = config.checkpoint.model_dump(mode="json", include={"best_metric"})
    if config.train.early_stopping is not None:
        train.add("early_stopping")
    return own | {
        "model": config.model.model_dump(mode="json"),
        "task": config.task.model_dump(mode="json"),
        "data": config.data.model_dump(mode="json", include=data),
        "train": config.train.model_dump(mode="json", include=train),
        **_fields_of(config),
    }


def _fields_of(config: RunConfig) -> dict[str, object]:
    if not config.sharding.fields:
        return {}
    # A tokenizer is of one of the fields.
    return {"sharding": config.sharding.model_dump(mode="json", include={"fields", "tokenizer"}, exclude_none=True)}


def _sections_of_place(config: RunConfig) -> dict[str, object]:
    return {
        "train": config.train.model_dump(mode="json", include={"precision", "allow_slow_precision"}),
        # The slot size is held against the global batch by the configuration itself.
        "parallel": config.parallel.model_dump(mode="json", exclude={"slot_size"}),
        "export": config.export.model_dump(mode="json", include={"runtime", "targets", "precision", "min_batch"}),
        "resources": config.resources.model_dump(mode="json", include={"ranks", "nodes"}),
    }


def _ask(check: tuple[str, ...], arguments: Sequence[str]) -> CheckAnswer:
    """Return the answer of a check's command.

    Args:
        check: Module, and its arguments that say which check.
        arguments: What is asked.
    """
    command = [sys.executable, "-m", *check, "--end-with-parent", *arguments]
    try:
        # torch leaves a folder in the temporary directory.
        with tempfile.TemporaryDirectory(prefix="shardline-", ignore_cleanup_errors=True) as temporary:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env={**stage_environment(), "TMPDIR": temporary},
                timeout=TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return _unanswered(check, f"the check has not ended after {TIMEOUT_S:g} s")
    except OSError as error:
        return _unanswered(check, f"the check could not be started ({error.strerror})")
    try:
        return CheckAnswer.model_validate_json(last_line(done.stdout))
    except ValueError:
        said = last_line(done.stderr)
        return _unanswered(check, f"the check ended with exit code {done.returncode}{said and ': ' + said}")


def _unanswered(check: tuple[str, ...], why: str) -> CheckAnswer:
    return CheckAnswer(unchecked=[Unchecked(what=_ABOUT[check], why=why)])


def _describe(machine: Machine) -> PlannedMachine:
    if not machine.gpus:
        return PlannedMachine(label=machine.label)
    gpu = ACCELERATORS[machine.accelerator_type]
    return PlannedMachine(label=machine.label, gpus=machine.gpus, gpu=gpu.short, capability=gpu.capability)
