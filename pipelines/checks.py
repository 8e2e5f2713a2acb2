"""Checks of a configuration by the stages themselves, before the first one starts: `python -m trainer.check`.

For `shardline run` they are about this machine, for `plan` and `submit` about the machines of Vertex AI. A check that
fails, or takes too long, refuses nothing: it is a warning.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable

from components.launch import last_line, stage_environment
from contracts import storage
from contracts.checked import Findings
from contracts.config import RunConfig
from contracts.config.load import with_data_date
from contracts.previous import PREVIOUS, find_previous

TIMEOUT_S = 120.0


def check_here(config: RunConfig, say: Callable[[str], None]) -> None:
    """Check a line that is to run on this machine; its source may be in a bucket.

    Args:
        config: The resolved configuration.
        say: Takes a line for each warning, and for each problem but the last.

    Raises:
        ConfigError: The last problem.
    """
    findings = _check(config, online=True)
    for text in findings.warnings:
        say(f"warning: {text}")
    for problem in findings.problems[:-1]:
        say(f"error: {problem.error()}")
    if findings.problems:
        raise findings.problems[-1].error()


def check_planned(config: RunConfig, *, online: bool = False) -> Findings:
    """Check a line that is to run on the machines of Vertex AI that it names; the unchecked is among the warnings.

    Args:
        config: The resolved configuration.
        online: Whether buckets may be asked.
    """
    return _check(config, "--elsewhere", online=online)


def _check(config: RunConfig, *options: str, online: bool) -> Findings:
    config = _with_previous(with_data_date(config, ""))
    weights = config.model.weights
    if online and "://" in weights and not storage.is_local(weights):
        options = (*options, "--online")
    found = _ask(f"--config-json={config.model_dump_json()}", *options)
    warnings = dict.fromkeys([*found.warnings, *found.unchecked])
    return Findings(problems=list(dict.fromkeys(found.problems)), warnings=list(warnings))


def _with_previous(config: RunConfig) -> RunConfig:
    """Return the configuration with the weights that `previous` stands for now, where the line is on this machine."""
    root = storage.normalise(config.run.root)
    if config.model.weights != PREVIOUS or not storage.is_local(root):
        return config
    weights = find_previous(storage.join(root, config.run.name)) or ""
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": weights})})


def _ask(*options: str) -> Findings:
    """Return the findings of the command."""
    command = [sys.executable, "-m", "trainer.check", "--end-with-parent", *options]
    try:
        # torch leaves a folder in the temporary directory.
        with tempfile.TemporaryDirectory(prefix="shardline-", ignore_cleanup_errors=True) as temporary:
            environment = {**stage_environment(), "TMPDIR": temporary}
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        return Findings.model_validate_json(last_line(done.stdout))
    except subprocess.TimeoutExpired:
        why = f"the check has not ended after {TIMEOUT_S:g} s"
    except OSError as error:
        why = f"the check could not be started ({error.strerror})"
    except ValueError:
        message = last_line(done.stderr)
        why = f"the check ended with exit code {done.returncode}{message and ': ' + message}"
    findings = Findings()
    findings.leave_unchecked("own code, network, weights, precision, spread over ranks, export target", why)
    return findings
