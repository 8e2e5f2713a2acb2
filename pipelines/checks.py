"""Checks of a configuration before the first stage starts, by the stages' own code: `python -m trainer.check`.

`shardline run` checks this machine; `plan` and `submit` check the machines of Vertex AI. A check that crashes or times
out is a warning, not an error.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from components.launch import last_line, stage_environment
from contracts import storage
from contracts.checked import Findings
from contracts.config import RunConfig
from contracts.config.load import with_data_date
from contracts.previous import PREVIOUS, find_previous

TIMEOUT_S = 120.0


def check_local(config: RunConfig, notify: Callable[[str], None]) -> None:
    """Check a line for a run on this machine; its source may be in a bucket.

    Args:
        config: The resolved configuration.
        notify: Receives one line per warning, and per problem except the last.

    Raises:
        ConfigError: The last problem.
    """
    findings = _check(config, online=True)
    for text in findings.warnings:
        notify(f"warning: {text}")
    for problem in findings.problems[:-1]:
        notify(f"error: {problem.error()}")
    if findings.problems:
        raise findings.problems[-1].error()


def check_planned(config: RunConfig, *, online: bool = False) -> Findings:
    """Check a line for a run on Vertex AI. What cannot be checked is reported as a warning.

    Args:
        config: The resolved configuration.
        online: Whether to read from buckets.
    """
    with ThreadPoolExecutor(1) as pool:
        findings = pool.submit(_check, config, "--elsewhere", online=online)
        if online:
            # The submission compiles next: kfp takes a second to import.
            with contextlib.suppress(ImportError):
                importlib.import_module("pipelines.pipeline")
        return findings.result()


def _check(config: RunConfig, *options: str, online: bool) -> Findings:
    config = _with_previous(with_data_date(config, ""))
    weights = config.model.weights
    if online and "://" in weights and not storage.is_local(weights):
        options = (*options, "--online")
    findings = _run_check(f"--config-json={config.model_dump_json()}", *options)
    warnings = dict.fromkeys([*findings.warnings, *findings.unchecked])
    return Findings(problems=list(dict.fromkeys(findings.problems)), warnings=list(warnings))


def _with_previous(config: RunConfig) -> RunConfig:
    """Replace `model.weights: previous` by the newest training of a line on this machine."""
    root = storage.normalise(config.run.root)
    if config.model.weights != PREVIOUS or not storage.is_local(root):
        return config
    weights = find_previous(storage.join(root, config.run.name)) or ""
    return config.with_keys(model={"weights": weights})


def _run_check(*options: str) -> Findings:
    command = [sys.executable, "-m", "trainer.check", "--end-with-parent", *options]
    try:
        # torch leaves a folder in the temporary directory.
        with tempfile.TemporaryDirectory(prefix="shardline-", ignore_cleanup_errors=True) as temporary:
            environment = {**stage_environment(), "TMPDIR": temporary}
            completed = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        return Findings.model_validate_json(last_line(completed.stdout))
    except subprocess.TimeoutExpired:
        reason = f"the check timed out after {TIMEOUT_S:g} s"
    except OSError as error:
        reason = f"the check could not be started ({error.strerror})"
    except ValueError:
        message = last_line(completed.stderr)
        reason = f"the check ended with exit code {completed.returncode}{message and ': ' + message}"
    findings = Findings()
    findings.leave_unchecked("own code, network, weights, precision, spread over ranks, export target", reason)
    return findings
