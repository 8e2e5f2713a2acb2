"""`shardline rehearse --serve`: serves the local Google Cloud, for any program that uses Google's clients.

    shardline rehearse --serve > cloud.env &
    . cloud.env && python program.py

The printed variables make the program's clients use only this cloud; they contain its credentials.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from contracts.config import MachineSection, RunConfig
from pipelines.rehearse.config import MACHINE, PROJECT, REGION, ROOT, RehearsalConfig, prepare
from pipelines.rehearse.options import RehearsalOptions
from pipelines.rehearse.rehearse import make_cloud, open_folder, require_new, signals_end

if TYPE_CHECKING:
    from rehearsal.cloud import LocalCloud

_POLL_S = 1.0


def serve(
    config: RunConfig | None,
    options: RehearsalOptions,
    folder: Path,
    stream: TextIO,
    log: TextIO,
    *,
    as_json: bool,
) -> None:
    """Start a cloud, print its variables, and serve until Ctrl-C (or SIGTERM, which ends with 143).

    Without a configuration it has one project with an empty bucket. The variables are printed to `stream`, as lines
    `export NAME=value` or one line of JSON (environment, project, region, buckets, folder); messages go to `log`.

    Raises:
        ConfigError: The configuration cannot be rehearsed, or the folder is in use.
    """
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(signals_end())
        cloud, region, buckets = _make_cloud(config, options, folder)
        stack.enter_context(cloud)
        cloud.clock.rate = options.clock_rate
        variables = dict(sorted(cloud.environment.items()))
        project = variables["GOOGLE_CLOUD_PROJECT"]
        if as_json:
            values = {"environment": variables, "project": project, "region": region, "buckets": buckets}
            text = json.dumps({**values, "folder": str(folder.absolute())})
        else:
            text = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        print(text, file=stream, flush=True)
        uris = ", ".join(f"gs://{bucket}" for bucket in buckets)
        print(f"serving project {project}, {region}, {uris}; Ctrl-C ends it", file=log, flush=True)
        try:
            pause = threading.Event()
            while not received and not pause.wait(_POLL_S):
                pass
        except KeyboardInterrupt:
            refused = f"; refused hosts: {', '.join(cloud.vertex.refused)}" if cloud.vertex.refused else ""
            calls = [entry for entry in cloud.vertex.access_log.entries() if entry.transport != "proxy"]
            print(f"\nserved {len(calls)} calls{refused}", file=log)
        else:
            raise SystemExit(128 + received[0])


def _make_cloud(config: RunConfig | None, options: RehearsalOptions, folder: Path) -> tuple[LocalCloud, str, list[str]]:
    """Return the cloud, which is not started yet, its region and its buckets."""
    if config is None:
        require_new(folder)
        empty = RunConfig().with_keys(
            cloud={"project": PROJECT, "region": REGION}, resources={"machine": MachineSection(type=MACHINE)}
        )
        prepared = RehearsalConfig(empty, buckets={ROOT.removeprefix("gs://").partition("/")[0]})
    else:
        prepared = prepare(config, options.source, options.weights)
        open_folder(folder, prepared, options.samples)
    return make_cloud(folder, prepared, options), prepared.config.cloud.region, sorted(prepared.buckets)
