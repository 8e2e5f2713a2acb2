"""Which PipelineJob a user means by RUN: an id, a full resource name, or the folder of a run or of a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.errors import ConfigError
from contracts.result import RUN_START_NAME, RUNS_FOLDER

if TYPE_CHECKING:
    from contracts.config import RunConfig

_RESOURCE = re.compile(r"projects/([^/]+)/locations/([^/]+)/pipelineJobs/([^/]+)")


@dataclass(frozen=True)
class RunName:
    """A PipelineJob's place and id."""

    project: str
    region: str
    id: str

    @property
    def resource(self) -> str:
        """Full resource name."""
        return f"projects/{self.project}/locations/{self.region}/pipelineJobs/{self.id}"

    @property
    def console(self) -> str:
        """Page of the run in the console."""
        return (
            f"https://console.cloud.google.com/vertex-ai/locations/{self.region}/pipelines/runs/{self.id}"
            f"?project={self.project}"
        )


def parse_resource(name: str) -> RunName | None:
    """Return the parts of a full resource name; None: it is none."""
    match = _RESOURCE.fullmatch(name)
    return RunName(*match.groups()) if match else None


def find_run_name(run: str, *, config: RunConfig | None = None, project: str = "", region: str = "") -> RunName:
    """Return which job RUN is.

    Args:
        run: The id of a run, its full resource name, its folder LINE/runs/ID, or LINE for its newest run.
        config: Configuration that names project and region.
        project: Project that wins over all others.
        region: Region that wins over all others.

    Raises:
        ConfigError: There is no such run, or project and region cannot be known.
    """
    if (named := parse_resource(run)) is not None:
        return named
    run_id = run
    if "/" in run:
        run_id, start = _read_start(storage.normalise(run))
        started = _vertex_of(start)
        project, region = project or started[0], region or started[1]
    if config is not None:
        project, region = project or config.vertex.project, region or config.vertex.region
    if not project or not region:
        missing = " and ".join(name for name, value in (("the project", project), ("the region", region)) if not value)
        raise ConfigError(
            f"{run}: {missing} of this run cannot be known",
            allowed="projects/PROJECT/locations/REGION/pipelineJobs/ID, or an id with its project and region",
            todo="add --config CONFIG, or --project and --region",
        )
    return RunName(project, region, run_id)


def _read_start(uri: str) -> tuple[str, Mapping[str, Any]]:
    """Return id and start document of a run's folder, or of the newest run of a line's."""
    if storage.exists(storage.join(uri, RUN_START_NAME)):
        return uri.rpartition("/")[2], _load(storage.join(uri, RUN_START_NAME))
    runs = storage.join(uri, RUNS_FOLDER)
    starts = {
        name: _load(storage.join(runs, name, RUN_START_NAME))
        for name in storage.list_names(runs)
        if storage.exists(storage.join(runs, name, RUN_START_NAME))
    }
    if not starts:
        raise ConfigError(
            f"{uri} is no run",
            allowed="the folder of a run (LINE/runs/ID) or of a line that has one",
            todo="check the URI; a run has its folder as soon as its first task has run",
        )
    newest = max(starts, key=lambda name: (str(starts[name].get("started_at", "")), name))
    return newest, starts[newest]


def _load(uri: str) -> Mapping[str, Any]:
    content = json.loads(storage.read_bytes(uri))
    return content if isinstance(content, dict) else {}


def _vertex_of(start: Mapping[str, Any]) -> tuple[str, str]:
    """Return project and region of a start document, where it names them."""
    config = start.get("config")
    vertex = config.get("vertex") if isinstance(config, dict) else None
    places = [start, vertex if isinstance(vertex, dict) else {}]
    return (
        next((str(place["project"]) for place in places if place.get("project")), ""),
        next((str(place["region"]) for place in places if place.get("region")), ""),
    )
