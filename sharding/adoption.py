"""Dataflow jobs of the same work, which another run began."""

from __future__ import annotations

import hashlib

from contracts import storage
from contracts.fingerprint import combine
from contracts.stage import Stage


def name_job(output_uri: str, fingerprint: str) -> str:
    """Return the name of the Dataflow job that writes an output: the same work in another place is another job."""
    return f"shardline-{fingerprint}-{hashlib.sha256(output_uri.encode()).hexdigest()[:8]}"


def find_running(stage: Stage, made_from: dict[str, str]) -> str | None:
    """Return the id of a Dataflow job that writes this output now; None: there is none.

    Asked before anything of the output is touched, `--fresh` included: what runs now makes it anew.
    """
    if stage.config.resources.beam_runner != "dataflow" or stage.list or stage.locate:
        return None
    from sharding.runners.dataflow import find_job

    fingerprint = combine(made_from)
    uri = stage.output or storage.join(stage.root or "", fingerprint)
    return find_job(stage.config, name_job(uri, fingerprint))
