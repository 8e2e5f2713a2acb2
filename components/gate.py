"""The gate before production: which export of a line is in production, and whether a new one replaces it.

    LINE/production.json    the export in production, since when and why, and the decisions on all others

Of a line on Vertex AI the version with the alias `production` decides (components/register_model.py); the document is
written beside it. An export is decided on once: what was kept out or replaced comes (back) into production by
`shardline promote` alone. Exports are compared by the command `python -m trainer.judge`.
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
"""Runs a command to its end."""
_TODO_UNPROVEN = (
    "export with export.runtime=tensorrt on the GPU that serves, run `shardline verify` on the engine's GPU, or set "
    "export.allow_unproven=true"
)
_TODO_BY_HAND = "`shardline promote RUN` puts it into production by hand"
# Entries of the judge's document that a decision has.
_NUMBERS = ("metric", "candidate", "production", "difference", "interval", "tolerance", "limit", "samples", "left_out")


class Production(Contract):
    """The export that is in production; its fingerprint is the name of its folder LINE/export/FINGERPRINT."""

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
    """Return a line's document; None: nothing is in production.

    Args:
        line: URI of the line's folder.

    Raises:
        DataError: It is damaged, or of another line.
    """
    uri = storage.join(line, PRODUCTION_NAME)
    try:
        found = Production.parse(storage.read_bytes(uri), where=storage.display(uri))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DataError as error:
        raise _refused(error.given, "the document as Shardline wrote it") from None
    name = line.rpartition("/")[2]
    if storage.join(line.rpartition("/")[0], found.line) != line:
        raise _refused(f"{storage.display(uri)} is of line {found.line}", f"the document of line {name}")
    return found


def require_comparable(config: RunConfig, line: str) -> None:
    """Refuse a run whose export could not be compared with the one in production, before anything is spent.

    Raises:
        DataError: The line's document is damaged, of another line or task, or its export is gone.
    """
    current = read_production(line)
    if current is None:
        return
    where = storage.display(storage.join(line, PRODUCTION_NAME))
    if current.task != config.task.name:
        raise DataError(
            f"{where} is of task {current.task}, task.name is {config.task.name}",
            allowed=f"task {current.task} in this line",
            todo=f"give the line of task {config.task.name} a run.name of its own",
        )
    export = current.export_uri(line)
    # One without a manifest is being made again (--fresh).
    if not storage.list_names(export):
        raise _refused(f"{where} names {storage.display(export)}, which is gone", "an export that is there")


def _refused(given: str, allowed: str) -> DataError:
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
        current: URI of the export in production; None: there is none.
        decided: Earlier decisions by fingerprint.
        run: Runs the judge.

    Raises:
        ConfigError: The export is damaged.
        ShardlineError: The judge came to no end.
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
    done = run([*command, f"--config-json={json.dumps(values)}"])
    words = done.stderr.decode(errors="replace")
    message = words.rpartition("judge: error: ")[2].strip()
    if done.returncode == EXIT_USER_ERROR:
        return {"verdict": "not compared", "reason": f"{message}\n  to do: {_TODO_BY_HAND}"}
    if done.returncode not in (EXIT_OK, EXIT_CHECK_FAILED):
        message = f"the comparison with production ended with {done.returncode}: {message[-2000:]}"
        code = max(done.returncode, 0) or EXIT_FAULT
        raise ErrorDocument(kind="Judge", exit_code=code, message=message).to_error()
    found = json.loads(last_line(done.stdout))
    low, high = found["interval"]
    reason = (
        f"{found['metric']} {found['candidate']:.4f}, in production {found['production']:.4f} (difference "
        f"{found['difference']:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}, {found['samples']} test samples)"
    )
    numbers = {name: found[name] for name in _NUMBERS}
    if done.returncode == EXIT_OK:
        return {"verdict": "production", "reason": reason, **numbers}
    reason += f": it loses more than {found['limit']:.4f}\n  to do: {_TODO_BY_HAND}"
    return {"verdict": "kept out", "reason": reason, **numbers}


def run_to_end(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run the judge in this process's group."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=stage_environment(), check=False)


def record_decision(config: RunConfig, line: str, run_id: str, fingerprint: str, decision: Decision) -> None:
    """Keep a decision on an export in the line's document.

    Args:
        config: Sections run and task.
        line: URI of the line's folder.
        run_id: Id of the run.
        fingerprint: Of the export.
        decision: The decision; its verdict is `production` where the export goes into production.
    """
    current = read_production(line)
    decided = dict(current.decided) if current is not None else {}
    if decision["verdict"] == "production":
        put_into_production(config, line, run_id, fingerprint, decision["reason"])
    elif current is not None and decision["verdict"] == "kept out" and decided.get(fingerprint) != decision:
        changed = current.model_copy(update={"decided": {**decided, fingerprint: decision}})
        storage.replace(storage.join(line, PRODUCTION_NAME), changed.to_json())


def put_into_production(config: RunConfig, line: str, run_id: str, fingerprint: str, why: str) -> None:
    """Write the line's document for another export; the replaced one is decided on. The same one changes nothing."""
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
