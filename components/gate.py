"""Production gate: the export of a line in production, and the decision whether a new export replaces it.

    LINE/production.json    the export in production, since when and why, and the decisions on all others

On Vertex AI the version with the alias `production` is authoritative (components/register_model.py); the document
mirrors it. Each export is decided on once: only `shardline promote` puts a rejected or replaced export into production.
The command `python -m trainer.judge` compares exports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from components.launch import last_line, stage_environment
from contracts import storage
from contracts.artifacts import Contract, ExportManifest
from contracts.config import RunConfig
from contracts.config.load import stage_config
from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_OK, EXIT_USER_ERROR, DataError, ErrorDocument
from contracts.proof import proven_on, read_verification, require_proven, verdict

PRODUCTION_NAME = "production.json"
Decision = dict[str, Any]
"""`results.register` of run.json: `verdict` (production, kept out, not compared or refused), `reason` in words,
`proof` (the export's verdict), and the numbers of the comparison where there was one."""
Runner = Callable[[list[str]], subprocess.CompletedProcess[bytes]]
"""Runs a command and waits for its end."""
_TODO_UNPROVEN = (
    "export with export.runtime=tensorrt on the GPU that serves, run `shardline verify` on the engine's GPU, or set "
    "export.allow_unproven=true"
)
_TODO_BY_HAND = "`shardline promote RUN` puts it into production by hand"
# Entries of the judge's document that are copied to a decision.
_NUMBERS = ("metric", "candidate", "production", "difference", "interval", "tolerance", "limit", "samples", "left_out")


class Production(Contract):
    """The export in production; its folder is LINE/export/FINGERPRINT."""

    FORMAT_VERSION: ClassVar[int] = 1

    kind: Literal["production"] = "production"
    format_version: int = 1
    line: str
    """run.name."""
    task: str
    """task.name."""
    run: str
    """Id of the run that it was put into production for."""
    since: str
    """UTC, ISO 8601."""
    why: str
    decided: dict[str, Decision] = Field(default={})
    """Decisions on other exports, by fingerprint."""

    def export_uri(self, line: str) -> str:
        """Return the URI of the export, in the line's folder."""
        return storage.join(line, "export", self.fingerprint)


def read_production(line: str) -> Production | None:
    """Return the document of a line, given by the URI of its folder; None if nothing is in production.

    Raises:
        DataError: It is damaged, or of another line.
    """
    uri = storage.join(line, PRODUCTION_NAME)
    try:
        document = Production.parse(storage.read_bytes(uri), where=storage.display(uri))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DataError as error:
        raise _invalid_production(error.given, "the document as Shardline wrote it") from None
    name = line.rpartition("/")[2]
    if storage.join(line.rpartition("/")[0], document.line) != line:
        raise _invalid_production(f"{storage.display(uri)} is of line {document.line}", f"the document of line {name}")
    return document


def require_comparable(config: RunConfig, line: str) -> None:
    """Refuse a run at its start if its export could not be compared with the one in production.

    Raises:
        DataError: The line's document is damaged, of another line or task, or its export is missing.
    """
    current = read_production(line)
    if current is None:
        return
    shown = storage.display(storage.join(line, PRODUCTION_NAME))
    if current.task != config.task.name:
        raise DataError(
            f"{shown} is of task {current.task}, task.name is {config.task.name}",
            allowed=f"task {current.task} in this line",
            todo=f"give the line of task {config.task.name} a run.name of its own",
        )
    export = current.export_uri(line)
    # An export without a manifest is being rewritten (--fresh).
    if not storage.list_names(export):
        raise _invalid_production(f"{shown} names {storage.display(export)}, which is gone", "an export that is there")


def _invalid_production(given: str, allowed: str) -> DataError:
    return DataError(
        given,
        allowed=allowed,
        todo="put it back, or move it away: then the next export that is proven goes into production",
    )


def decide(
    config: RunConfig, export: str, shards: str, *, current: str | None, decided: Mapping[str, Decision], run: Runner
) -> Decision:
    """Return the decision on an export.

    Args:
        config: The keys of the configuration that registration reads.
        export: URI of the export.
        shards: URI of the shards whose test split is used.
        current: URI of the export in production, or None.
        decided: Earlier decisions by fingerprint.
        run: Runs the judge.

    Raises:
        ConfigError: The export is damaged.
        ShardlineError: The judge failed.
    """
    document = ExportManifest.load(export)
    verification = read_verification(export, document)
    proof = verdict(document, verification)
    decision: Decision = {"proof": proof}
    if current == export:
        return {"verdict": "production", "reason": "it is in production already", **decision}
    if current is not None and document.fingerprint in decided:
        return decided[document.fingerprint]
    if not proven_on(document, verification) and not config.export.allow_unproven:
        return {"verdict": "refused", "reason": f"{proof}\n  to do: {_TODO_UNPROVEN}", **decision}
    require_proven(export, document, allow_unproven=config.export.allow_unproven)
    if current is None:
        return {"verdict": "production", "reason": f"the first export of the line; {proof}", **decision}
    return {**_judge(config, export, current, shards, run), **decision}


def _judge(config: RunConfig, candidate: str, production: str, shards: str, run: Runner) -> Decision:
    values = {name: value for name, value in stage_config(config, "register").items() if name != "cloud"}
    command = [sys.executable, "-m", "trainer.judge", f"--candidate={candidate}", f"--production={production}"]
    command += [f"--shards={shards}", f"--tolerance={config.register.tolerance!r}"]
    completed = run([*command, f"--config-json={json.dumps(values)}"])
    stderr = completed.stderr.decode(errors="replace")
    message = stderr.rpartition("judge: error: ")[2].strip()
    if completed.returncode == EXIT_USER_ERROR:
        return {"verdict": "not compared", "reason": f"{message}\n  to do: {_TODO_BY_HAND}"}
    if completed.returncode not in (EXIT_OK, EXIT_CHECK_FAILED):
        message = f"the comparison with production ended with {completed.returncode}: {message[-2000:]}"
        code = max(completed.returncode, 0) or EXIT_FAULT
        raise ErrorDocument(kind="Judge", exit_code=code, message=message).to_error()
    result = json.loads(last_line(completed.stdout))
    low, high = result["interval"]
    reason = (
        f"{result['metric']} {result['candidate']:.4f}, in production {result['production']:.4f} (difference "
        f"{result['difference']:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}, {result['samples']} test samples)"
    )
    numbers = {name: result[name] for name in _NUMBERS}
    if completed.returncode == EXIT_OK:
        return {"verdict": "production", "reason": reason, **numbers}
    reason += f": it loses more than {result['limit']:.4f}\n  to do: {_TODO_BY_HAND}"
    return {"verdict": "kept out", "reason": reason, **numbers}


def run_to_end(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command and capture its output."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=stage_environment(), check=False)


def record_decision(config: RunConfig, line: str, run_id: str, fingerprint: str, decision: Decision) -> None:
    """Record a decision on an export in the line's document.

    Args:
        config: Sections run and task.
        line: URI of the line's folder.
        run_id: Id of the run.
        fingerprint: Fingerprint of the export.
        decision: The decision; with the verdict `production` the export goes into production.
    """
    current = read_production(line)
    decided = dict(current.decided) if current is not None else {}
    if decision["verdict"] == "production":
        put_into_production(config, line, run_id, fingerprint, decision["reason"])
    elif current is not None and decision["verdict"] == "kept out" and decided.get(fingerprint) != decision:
        changed = current.model_copy(update={"decided": {**decided, fingerprint: decision}})
        storage.replace(storage.join(line, PRODUCTION_NAME), changed.to_json())


def put_into_production(config: RunConfig, line: str, run_id: str, fingerprint: str, why: str) -> None:
    """Put an export into production in the line's document, and record a decision on the one that it replaces."""
    current, now = read_production(line), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    decided = {} if current is None else dict(current.decided)
    if current is not None and current.fingerprint == fingerprint:
        return
    if current is not None:
        reason = f"in production from {current.since} to {now}, replaced by run {run_id}: {why}"
        decided[current.fingerprint] = {"verdict": "kept out", "reason": f"{reason}\n  to do: {_TODO_BY_HAND}"}
    decided.pop(fingerprint, None)
    changed = Production(
        fingerprint=fingerprint,
        line=config.run.name,
        task=config.task.name,
        run=run_id,
        since=now,
        why=why,
        decided=decided,
    )
    storage.replace(storage.join(line, PRODUCTION_NAME), changed.to_json())
