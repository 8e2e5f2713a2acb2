"""Disturbances of a rehearsal beside preemptions: options, what the local cloud makes of them, and what they struck."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.rules.preflight import find_rungs

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob

    from rehearsal.cloud import LocalCloud
    from rehearsal.gcs import Rule
    from rehearsal.jobs.market import Stockout

_PLACE = re.compile(r"(?P<region>[a-z]+-[a-z]+\d+)(?P<zone>-[a-z])?(@(?P<rung>\d+))?")
_METRIC_PREFIX = "aiplatform.googleapis.com/"
# More would strike the clients' own retries too: six tries of a request, all in vain, once in 64 requests.
MAX_FAULT_RATE = 0.5
MAX_SLOW_START_S = 86400.0


@dataclass(frozen=True)
class Disturbances:
    """What is to go wrong, as the options say it."""

    stockouts: tuple[str, ...] = ()
    """REGION or ZONE, @RUNG behind it where it is for one rung of the ladder, counted from 1."""
    quotas: tuple[str, ...] = ()
    """METRIC=N, in every region of the ladder."""
    missing_image: bool = False
    """Whether the trainer's image cannot be pulled."""
    kill_tasks: tuple[str, ...] = ()
    """Names of tasks that lose their machine once."""
    slow_start_s: float = 0.0
    """Seconds of the platform for which each job waits for its machines."""
    storage_fault_rate: float = 0.0
    """Share of the requests to buckets that are answered with 503."""

    def rules(self, seed: int) -> tuple[Rule, ...]:
        """Return what the bucket server is to play.

        Raises:
            ConfigError: The rate is none.
        """
        from rehearsal.gcs import Rule

        _require_number("--storage-faults", self.storage_fault_rate, MAX_FAULT_RATE, "share of the requests to buckets")
        if not self.storage_fault_rate:
            return ()
        return (Rule(probability=self.storage_fault_rate, status=503, seed=seed),)

    def places(self, config: RunConfig) -> tuple[Stockout, ...]:
        """Return where there are no machines.

        Raises:
            ConfigError: A place is none of the ladder's.
        """
        _require_number("--slow-start", self.slow_start_s, MAX_SLOW_START_S, "seconds")
        return tuple(_read_stockout(text, config) for text in self.stockouts)

    def limits(self, config: RunConfig) -> dict[str, dict[str, int]]:
        """Return quotas: metric -> region -> limit.

        Raises:
            ConfigError: A metric is none that the line needs, or a limit is none.
        """
        from pipelines.plan.plan import make_plan

        known = sorted({need.metric for rung in make_plan(config).rungs for need in rung.quotas}) if self.quotas else []
        regions = {rung.region for rung in find_rungs(config)}
        found: dict[str, dict[str, int]] = {}
        for text in self.quotas:
            metric, _, limit = text.removeprefix(_METRIC_PREFIX).partition("=")
            names = [name.removeprefix(_METRIC_PREFIX) for name in known]
            if metric not in names or not limit.isdecimal():
                raise ConfigError(
                    f"--quota {text}",
                    allowed=f"METRIC=N with N 0 or more, and METRIC one that the line needs: {', '.join(names)}",
                    todo="correct --quota",
                )
            found[metric] = dict.fromkeys(regions, int(limit))
        return found

    def images(self, config: RunConfig) -> tuple[str, ...]:
        """Return the images that cannot be pulled."""
        from pipelines.images.record import find_image

        return (find_image(config, "trainer"),) if self.missing_image else ()

    def tasks(self, config: RunConfig) -> tuple[str, ...]:
        """Return the tasks that lose their machine.

        Raises:
            ConfigError: The pipeline has no such task.
        """
        if not self.kill_tasks:
            return ()
        from pipelines.graph.compile import compile_line
        from pipelines.plan.plan import make_plan
        from rehearsal.pipelines.containers import is_named

        paths = list(_task_paths(compile_line(config, make_plan(config)).spec))
        for name in self.kill_tasks:
            if not any(is_named(path, name) for path in paths):
                names = ", ".join(".".join(path) for path in paths)
                raise ConfigError(f"--kill-task {name}", allowed=names, todo="name one of them, or the end of one")
        return self.kill_tasks

    def find_struck(self, cloud: LocalCloud) -> list[str]:
        """Return what happened, in words."""
        return [words for words, _ in self._happened(cloud) if words]

    def find_idle(self, cloud: LocalCloud) -> list[str]:
        """Return the options that struck nothing."""
        happened = list(self._happened(cloud))
        idle = {option for words, option in happened if not words} - {option for words, option in happened if words}
        return sorted(idle)

    def _happened(self, cloud: LocalCloud) -> Iterator[tuple[str, str]]:
        """Yield what each option has struck, with the option; the empty text where it struck nothing."""
        from rehearsal.pipelines.containers import is_named

        for text in self.stockouts:
            place, _, rung = text.partition("@")
            jobs = [job for stockout, job in cloud.market.struck if stockout.place == place]
            words = f"no machines in {place}{f' on rung {rung}' if rung else ''}: {', '.join(dict.fromkeys(jobs))}"
            yield words if jobs else "", f"--stockout {text}"
        for text in self.quotas:
            metric = text.removeprefix(_METRIC_PREFIX).partition("=")[0]
            said = [words for words in cloud.quotas.struck.values() if words.startswith(f"{_METRIC_PREFIX}{metric} ")]
            # A line's jobs run one after the other: a limit that is not met has been enough.
            met = "enough for every job" if _jobs(cloud) else "the plan exceeds it"
            for words in dict.fromkeys(said or [f"{text}: {met}"]):
                yield f"quota {words}", f"--quota {text}"
        if self.missing_image:
            jobs = [job.display_name for job in _jobs(cloud) if "could not be started: image" in job.error.message]
            yield f"an image that cannot be pulled: {', '.join(jobs)}" if jobs else "", "--missing-image"
        lost = list(_lost_tasks(cloud)) if self.kill_tasks else []
        for name in self.kill_tasks:
            task = next((task for task in lost if is_named(tuple(task.split(".")), name)), "")
            words = f"the machine of task {task} was lost, and its container started again"
            yield words if task else "", f"--kill-task {name}"
        if self.slow_start_s:
            started = [job for job in _jobs(cloud) if job.start_time]
            words = f"machines came {self.slow_start_s:g} s of the platform late, for {len(started)} jobs"
            yield words if started else "", f"--slow-start {self.slow_start_s:g}"
        if self.storage_fault_rate:
            # The last of the rules, behind those of --faults.
            hits = cloud.buckets.faults.hits()[-1]
            words = f"{hits} requests to buckets were answered with 503"
            yield words if hits else "", f"--storage-faults {self.storage_fault_rate:g}"


def _jobs(cloud: LocalCloud) -> list[CustomJob]:
    from google.cloud.aiplatform_v1 import types

    return list(cloud.store.list("projects/", types.CustomJob))


def _lost_tasks(cloud: LocalCloud) -> Iterator[str]:
    """Yield the dotted paths of tasks whose machine was lost."""
    from rehearsal.pipelines.containers import LOST_WORDS

    for entry in cloud.logs.entries():
        if entry["jsonPayload"]["message"].startswith(LOST_WORDS):
            yield entry["resource"]["labels"]["pipeline_task_name"]


def _task_paths(spec: Mapping[str, Any], component: str = "", above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all tasks of a compiled pipeline."""
    dag = (spec["components"][component] if component else spec["root"]).get("dag", {})
    for name, task in dag.get("tasks", {}).items():
        yield (*above, name)
        yield from _task_paths(spec, task["componentRef"]["name"], (*above, name))


def _read_stockout(text: str, config: RunConfig) -> Stockout:
    from rehearsal.jobs.market import Stockout

    rungs = find_rungs(config)
    found = _PLACE.fullmatch(text)
    number = int(found["rung"]) if found and found["rung"] else None
    if found is not None and any(rung.region == found["region"] for rung in rungs):
        place = found["region"] + (found["zone"] or "")
        if number is None:
            return Stockout(place)
        if 1 <= number <= len(rungs) and rungs[number - 1].region == found["region"]:
            return Stockout(place, rungs[number - 1].strategy)
    shown = ", ".join(f"{rung.region}@{place} ({rung.strategy})" for place, rung in enumerate(rungs, start=1))
    raise ConfigError(
        f"--stockout {text}",
        allowed=f"a region of the ladder or a zone of it, with @RUNG for one rung alone: {shown}",
        todo="correct --stockout, or resources.ladder",
    )


def _require_number(option: str, value: float, most: float, words: str) -> None:
    if not 0 <= value <= most:
        raise ConfigError(f"{option} {value:g}", allowed=f"{words}, from 0 to {most:g}", todo=f"correct {option}")
