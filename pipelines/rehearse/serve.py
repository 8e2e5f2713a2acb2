"""`shardline rehearse --serve`: the local Google Cloud alone, for any program that uses Google's clients.

    shardline rehearse --serve > cloud.env &
    . cloud.env && python program.py

The variables that are printed lead the program's clients here and nowhere else; they carry the token of this cloud.
"""

from __future__ import annotations

import json
import shlex
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from contracts.errors import ConfigError
from pipelines.rehearse.commands import signals_end
from pipelines.rehearse.config import REGION, ROOT, prepare
from pipelines.rehearse.disturbances import Disturbances
from pipelines.rehearse.rehearse import Wanted, make_bare_cloud, make_cloud, open_folder

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from rehearsal.cloud import LocalCloud

_LOOK_S = 1.0
# As often as a schedule of once a minute may fire while its runs take seconds.
_MAX_CLOCK_RATE = 7 * 86400.0


@dataclass(frozen=True)
class Server:
    """A cloud that is to be served."""

    config: RunConfig | None
    """Whose project, region, buckets, source and machines it has; None: a project and a bucket of no configuration."""
    source: Path | None
    weights: Path | None
    folder: Path
    """For everything that is written; new or empty."""
    wanted: Wanted
    clock_rate: float = 1.0
    """Seconds of the cloud's clock, by which schedules fire, in one of the machine's."""


def check_options(wanted: Wanted, *, serve: bool, config: Path | None, bound: bool, clock_rate: float) -> None:
    """Refuse what does not go together.

    Args:
        wanted: What is to happen.
        serve: Whether the cloud is only served.
        config: The configuration's path; None: none was given.
        bound: Whether there is an option that speaks of a configuration: a source, weights.
        clock_rate: Of the cloud's clock.

    Raises:
        ConfigError: Neither a configuration nor --serve, options that need a configuration, or a rate of the clock
            that is none.
    """
    if config is None and not serve:
        raise ConfigError(
            "shardline rehearse without CONFIG",
            allowed="a configuration, or --serve",
            todo="name the YAML file that is to be rehearsed",
        )
    if not 0 < clock_rate <= _MAX_CLOCK_RATE or (clock_rate != 1 and not serve):
        raise ConfigError(
            f"--clock-rate {clock_rate:g}{'' if serve else ' without --serve'}",
            allowed=f"with --serve a number above 0, up to {_MAX_CLOCK_RATE:.0f}; 1 is the real time",
            todo="correct it; a rehearsal of a configuration has --schedule-days",
        )
    if serve and wanted.schedule_days:
        raise ConfigError(
            "--schedule-days with --serve", allowed="--clock-rate", todo="let the served clock run faster instead"
        )
    is_bound = bound or wanted.preemptions or wanted.samples or wanted.disturbances != Disturbances()
    if config is None and is_bound:
        raise ConfigError(
            "--serve without CONFIG, with an option that speaks of one",
            allowed="--faults, --clock-rate, --time-scale, --seed, --processes, --keep",
            todo="leave the other options out, or name the configuration whose cloud is to be served",
        )


def run_server(server: Server, stream: TextIO, log: TextIO, *, as_json: bool) -> None:
    """Start the cloud, print its variables, and serve until Ctrl-C (or SIGTERM, which ends with 143).

    Args:
        server: What is served.
        stream: Where to print, at once: lines `export NAME=value`, or one line of JSON.
        log: Where to say that it serves, and what it has served.
        as_json: Whether JSON is printed: environment, project, region, buckets, folder.

    Raises:
        ConfigError: What was given cannot be rehearsed, or the folder is in use.
    """
    cloud, region, buckets = _prepare(server)
    with signals_end() as received, cloud:
        cloud.clock.rate = server.clock_rate
        variables = dict(sorted(cloud.environment.items()))
        project = variables["GOOGLE_CLOUD_PROJECT"]
        if as_json:
            found = {"environment": variables, "project": project, "region": region, "buckets": buckets}
            text = json.dumps({**found, "folder": str(server.folder.absolute())})
        else:
            text = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        print(text, file=stream, flush=True)
        places = ", ".join(f"gs://{bucket}" for bucket in buckets)
        print(f"serving project {project}, {region}, {places}; Ctrl-C ends it", file=log, flush=True)
        try:
            never = threading.Event()
            while not received and not never.wait(_LOOK_S):
                pass
        except KeyboardInterrupt:
            print(_summary(cloud), file=log)
        else:
            raise SystemExit(128 + received[0])


def _prepare(server: Server) -> tuple[LocalCloud, str, list[str]]:
    """Return the cloud, which is not started yet, its region and its buckets."""
    wanted = server.wanted
    if server.config is not None:
        prepared = prepare(server.config, server.source, server.weights)
        open_folder(server.folder, prepared, wanted.samples)
        cloud = make_cloud(server.folder, prepared, wanted)
        return cloud, prepared.config.cloud.region, sorted(prepared.buckets)
    buckets = [ROOT.removeprefix("gs://").partition("/")[0]]
    return make_bare_cloud(server.folder, wanted, buckets), REGION, buckets


def _summary(cloud: LocalCloud) -> str:
    calls = cloud.vertex.access_log.entries()
    refused = f"; refused hosts: {', '.join(cloud.vertex.refused)}" if cloud.vertex.refused else ""
    return f"\nserved {len(calls)} calls{refused}"
