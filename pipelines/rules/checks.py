"""Checks of a configuration before the first stage, made by `python -m trainer.check`.

For `shardline run` they are about this machine, for `plan` and `submit` about the machines of Vertex AI. A check that
fails, or takes too long, refuses nothing: it is a warning.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from components.launch import last_line, stage_environment
from contracts import storage
from contracts.checked import Findings, Problem
from contracts.config import RunConfig
from contracts.config.load import with_data_date
from contracts.previous import PREVIOUS, find_previous

TIMEOUT_S = 120.0


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
    return _check(config, online=True)


def check_planned(config: RunConfig, *, online: bool = False) -> Checked:
    """Check a line that is to run on the machines of Vertex AI that it names.

    Args:
        config: The resolved configuration.
        online: Whether buckets may be asked.
    """
    return _check(config, "--elsewhere", online=online)


def _check(config: RunConfig, *options: str, online: bool) -> Checked:
    config = _with_previous(with_data_date(config, ""))
    if online and _is_remote(config.model.weights):
        options = (*options, "--online")
    found = _ask(f"--config-json={config.model_dump_json()}", *options)
    return Checked(
        tuple(dict.fromkeys(found.problems)),
        tuple(dict.fromkeys((*found.warnings, *found.unchecked))),
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


def _ask(*options: str) -> Findings:
    """Return the answer of the command."""
    command = [sys.executable, "-m", "trainer.check", "--end-with-parent", *options]
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
        return _unanswered(f"the check has not ended after {TIMEOUT_S:g} s")
    except OSError as error:
        return _unanswered(f"the check could not be started ({error.strerror})")
    try:
        return Findings.model_validate_json(last_line(done.stdout))
    except ValueError:
        message = last_line(done.stderr)
        return _unanswered(f"the check ended with exit code {done.returncode}{message and ': ' + message}")


def _unanswered(why: str) -> Findings:
    findings = Findings()
    findings.leave_unchecked("own code, network, weights, precision, spread over ranks, export targets", why)
    return findings
