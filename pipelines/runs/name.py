"""The PipelineJob that a user means by RUN: an id, a full resource name, or the folder of a run or of a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.errors import ConfigError
from inspection.run.find import LATEST, find_place, read_start

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


@dataclass(frozen=True)
class RunSearch:
    """A run, and where its job may be."""

    name: RunName
    """In the first region."""
    regions: tuple[str, ...] = ()
    """Further regions in which it may have been tried (`resources.regions`)."""
    line: str = ""
    """Name of its line, which the job's label repeats; empty: not known."""


def parse_resource(name: str) -> RunName | None:
    """Return the parts of a full resource name; None: it is none."""
    match = _RESOURCE.fullmatch(name)
    return RunName(*match.groups()) if match else None


def find_run(run: str, *, config: RunConfig | None = None, project: str = "", region: str = "") -> RunSearch:
    """Return the run that a user means.

    Args:
        run: Full resource name or id of a PipelineJob; its folder, or a line's, as `inspection.run.find.find_place`
            takes them; NAME:latest, where the configuration says where lines are.
        config: Configuration that names project and region.
        project: Project that wins over all others.
        region: Region that wins over all others; the run is looked for there alone.

    Raises:
        ConfigError: There is no such run, or project and region cannot be known.
    """
    if (named := parse_resource(run)) is not None:
        return RunSearch(named)
    regions: tuple[str, ...] = ()
    line, is_there = "", region
    run_id, place = run, None
    if "/" not in run and run.endswith(LATEST) and config is not None:
        run = f"{config.run.root}/{run}"
    if "/" in run or run.endswith(LATEST):
        place = find_place(run)
        start = read_start(place)
        run_id, started = place.run_id, _vertex_of(start)
        project, region = project or started[0], region or started[1]
        regions, line = _tries_of(start)
    if config is not None:
        project, region = project or config.cloud.project, region or config.cloud.region
        regions, line = tuple(config.resources.regions), config.run.name
    if not project or not region:
        if place is not None and storage.is_local(place.line):
            raise ConfigError(
                f"{run} is a run of this machine",
                allowed="runs of Vertex AI",
                todo=f"look at it with: shardline inspect {run} (or report); its logs are in its page",
            )
        missing = " and ".join(name for name, value in (("the project", project), ("the region", region)) if not value)
        raise ConfigError(
            f"{run}: {missing} of this run cannot be known",
            allowed="projects/PROJECT/locations/REGION/pipelineJobs/ID, or an id with its project and region",
            todo="add --config CONFIG, or --project and --region",
        )
    return RunSearch(RunName(project, region, run_id), () if is_there else regions, line)


def _vertex_of(start: Mapping[str, Any]) -> tuple[str, str]:
    """Return project and region of a start document, where it names them."""
    config = start.get("config")
    cloud = config.get("cloud") if isinstance(config, dict) else None
    places = [start, cloud if isinstance(cloud, dict) else {}]
    return (
        next((str(place["project"]) for place in places if place.get("project")), ""),
        next((str(place["region"]) for place in places if place.get("region")), ""),
    )


def _tries_of(start: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the further regions and the line of a start document, where it names them."""
    config = start.get("config")
    values = config if isinstance(config, dict) else {}
    regions = (values.get("resources") or {}).get("regions") or ()
    return tuple(str(region) for region in regions), str((values.get("run") or {}).get("name") or "")
