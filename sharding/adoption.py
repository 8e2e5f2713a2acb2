"""Dataflow jobs of the same work, which another run began: found, joined, or named."""

from __future__ import annotations

import hashlib
from pathlib import Path

from contracts import storage
from contracts.errors import TryAgain
from contracts.fingerprint import combine
from contracts.stage import Stage


def name_job(output_uri: str, fingerprint: str) -> str:
    """Return the name of the Dataflow job that writes an output: the same work in another place is another job."""
    return f"shardline-{fingerprint}-{hashlib.sha256(output_uri.encode()).hexdigest()[:8]}"


def find_running(stage: Stage, made_from: dict[str, str]) -> str | None:
    """Return the id of a Dataflow job that writes this output now; None: there is none.

    Asked before anything of the output is touched, `--fresh` included: what runs now makes it anew.
    """
    if stage.config.resources.beam_runner != "dataflow" or stage.where or stage.locate:
        return None
    from sharding.runners.dataflow import find_job

    fingerprint = combine(made_from)
    uri = stage.output or storage.join(stage.root or "", fingerprint)
    return find_job(stage.config, name_job(uri, fingerprint), active=True)


def name_finished_job(stage: Stage, launch: Path) -> None:
    """Give out the job that made the shards, which another run began: whoever waits for it sees that it is done.

    Raises:
        TryAgain: No job of Dataflow has made them.
    """
    from sharding.runners.dataflow import find_job, write_resources

    assert stage.claimed is not None
    job_id = find_job(stage.config, name_job(stage.claimed.uri, stage.claimed.fingerprint))
    if job_id is None:
        raise TryAgain(
            f"{storage.display(stage.claimed.uri)} was finished after it was listed, and not by a Dataflow job that "
            "could be waited for; run again, and it is reused"
        )
    stage.log(f"another run has finished {storage.display(stage.claimed.uri)} meanwhile, by job {job_id}")
    write_resources(launch, stage.config, job_id)
