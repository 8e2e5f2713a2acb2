"""Rules of a submission about what is said beside the configuration: run id, tags, template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.config import RunConfig
from contracts.errors import UserError
from pipelines.rules.problem import Problem

if TYPE_CHECKING:
    from pipelines.plan.plan import Plan

# Differences between a template and a configuration that an error names.
_MOST_NAMED = 3
_FIRST_NAMED = ("replica_count", "machine_type", "accelerator_type", "accelerator_count", "image_uri", ".image")
# Of a spec, what decides nothing that runs: kfp's version, the words about it, and the defaults of its parameters, all
# of which a submission gives.
_SAYS_NOTHING = ("sdkVersion", "pipelineInfo.description")
_DEFAULTS = "root.inputDefinitions.parameters."


@dataclass(frozen=True)
class Asked:
    """What a submission says beside the configuration."""

    run_id: str = ""
    """Id of the run; empty: one is made."""
    template: str = ""
    """A compiled pipeline to submit instead: a file, gs://, or one in Artifact Registry."""
    tags: tuple[str, ...] = ()
    """Tags of the version in vertex.registry."""
    scheduled: bool = False
    """Whether it is for a schedule, which needs its times."""


def find_asked_problems(config: RunConfig, asked: Asked) -> Iterator[Problem]:
    """Yield what is wrong with it."""
    from pipelines.submission.request import check_run_id

    if asked.run_id:
        try:
            check_run_id(asked.run_id)
        except UserError as error:
            yield Problem.of(error)
    if asked.tags and not config.vertex.registry:
        yield Problem(f"--tag {asked.tags[0]} without a repository", "vertex.registry set", "set vertex.registry")
    if asked.tags and asked.template:
        yield Problem("--tag beside --template", "one of them", "tag a template when it is uploaded")
    if asked.scheduled and not config.schedule.cron:
        yield Problem(
            "schedule.cron is not set",
            "five fields: minute, hour, day of the month, month, day of the week",
            "set it, e.g. '0 6 * * 1' for Mondays at six; the time zone is schedule.time_zone",
        )


def find_template_problems(config: RunConfig, plan: Plan, uri: str) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Return a template's spec, and in what it fixes something else than the configuration says.

    A template fixes all but its parameters: machines, nodes, images, account, labels, keys, networks, model names.

    Args:
        config: Of a plan without problems.
        plan: The plan.
        uri: The template.
    """
    from pipelines.graph.compile import compile_line
    from pipelines.submission.template import read_template

    try:
        spec = read_template(uri)
        wanted = compile_line(config, plan).spec
    except UserError as error:
        return None, [Problem.of(error)]
    ours, theirs = dict(_leaves(wanted)), dict(_leaves(spec))
    different = sorted(
        (path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)),
        key=lambda path: (_rank(path), path not in ours or path not in theirs, path),
    )
    if not different:
        return spec, []
    said = "; ".join(
        f"{path}: {_show(theirs.get(path))} there, {_show(ours.get(path))} by the configuration"
        for path in different[:_MOST_NAMED]
    )
    more = f"; and {len(different) - _MOST_NAMED} more" if len(different) > _MOST_NAMED else ""
    return spec, [
        Problem(
            f"--template {uri} is of another configuration: {said}{more}",
            "a template that was compiled from what the configuration says of machines, nodes, images, accounts, "
            "labels, networks, keys and the model; parameters may differ",
            "compile and upload it again, correct the configuration, or leave --template out",
        )
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a spec fixes, by the path to it."""
    if path in _SAYS_NOTHING or (path.startswith(_DEFAULTS) and path.endswith(".defaultValue")):
        return
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{place}")
    else:
        yield path, value


def _rank(path: str) -> int:
    return next((place for place, name in enumerate(_FIRST_NAMED) if path.endswith(name)), len(_FIRST_NAMED))


def _show(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 100 else f"{text[:60]}...{text[-30:]}"
