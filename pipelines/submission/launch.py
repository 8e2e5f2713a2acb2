"""`shardline submit` and `schedule create`: data and images first, then the plan, then the job or the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contracts.canonical import canonical
from contracts.config import RunConfig
from contracts.errors import EXIT_OK, TryAgain
from pipelines.compile import CompiledLine, compile_line, without_cache
from pipelines.plan import Plan, cost_values, describe_cost, plan_of
from pipelines.rules.submission import Asked
from pipelines.runs.follow import make_view
from pipelines.runs.regions import follow_regions
from pipelines.submission.local_data import find_local_data
from pipelines.submission.preparations import find_preparations, look_ahead, make_preparations, with_images
from pipelines.submission.schedule import make_schedule
from pipelines.submission.submit import Prepared, Submitted, prepare, submit

Say = Callable[[str], None]
_EXIT_INTERRUPTED = 130


def describe_request(config: RunConfig, run_id: str, say: Say, *, cache: bool = True) -> dict[str, Any]:
    """Return the request that a submission would make, and its cost; nobody is asked, and nothing is made.

    Args:
        config: Resolved, with absolute paths.
        run_id: Id of the run; empty: one is made.
        say: Told of warnings, costs and placeholders.
        cache: Whether KFP's cache is used.

    Raises:
        ConfigError: The plan's first problem.
    """
    ahead = look_ahead(config, say)
    plan = plan_of(ahead.config, Asked(run_id=run_id), local_source=ahead.local_source)
    prepared = prepare(ahead.config, _compile(ahead.config, plan, cache=cache), run_id=run_id)
    _say_plan(plan, say)
    for placeholder in ahead.placeholders:
        say(f"placeholder: {placeholder}")
    return {**prepared.submission().to_json(), "estimate": cost_values(plan), "placeholders": ahead.placeholders}


def make_ready(
    config: RunConfig, run_id: str, say: Say, *, keep_images: bool, agreed: Callable[[str], bool], cache: bool = True
) -> Prepared | None:
    """Upload data and build images where that is needed, and return what is to be submitted.

    Args:
        config: Resolved, with absolute paths.
        run_id: Id of the run; empty: one is made.
        say: Told what is done.
        keep_images: Whether images of other sources than this program do.
        agreed: Asks the user whether something is to be done.
        cache: Whether KFP's cache is used.

    Returns:
        None: The user did not agree.

    Raises:
        ConfigError: The plan's first problem.
        TryAgain: A service gave no answer.
    """
    asked = Asked(run_id=run_id)
    local = find_local_data(config, say)
    here = local.given if local else ""
    config = local.of(config) if local else config
    if todo := find_preparations(config, local, keep_images=keep_images):
        # Nothing is paid for that a plan would refuse afterwards.
        plan_of(with_images(config), asked, online=True, local_source=here)
        for line in todo.words:
            say(line)
        if not agreed("do these"):
            return None
        make_preparations(config, todo, say)
    plan = plan_of(config, asked, online=True, local_source=here)
    prepared = prepare(config, _compile(config, plan, cache=cache), run_id=run_id)
    _say_plan(plan, say)
    return prepared


def launch(prepared: Prepared, path: str, again: str, say: Say, tell: Say, *, wait: bool) -> int:
    """Submit a run, and follow it to its end where that is wanted; return the exit code.

    Args:
        prepared: What to submit.
        path: The configuration's file, for advice.
        again: What was typed behind `submit`, but for its --run-id and --wait.
        say: Told what happens.
        tell: Told the job's full name.
        wait: Whether to follow it.

    Raises:
        TryAgain: A job of this id has ended before, or a service gave no answer.
    """

    def submitted(made: Submitted) -> None:
        say(f"run {made.name.id} {'exists: ' + made.state.lower() if made.existed else 'submitted'}")
        say(made.name.console)
        if made.warning:
            say(f"warning: {made.warning}")
        tell(made.name.resource)

    if wait:
        return _follow(prepared, path, again, say, submitted)
    made = submit(prepared, prepared.submission())
    submitted(made)
    if made.existed and made.state in ("FAILED", "CANCELLED"):
        raise TryAgain(
            f"run {made.name.id} has ended before: {made.state.lower()}; nothing was submitted\n"
            "  to do: take another --run-id, or leave it out and one is made"
        )
    return EXIT_OK


def prepare_schedule(config: RunConfig, say: Say, *, online: bool) -> tuple[Prepared, dict[str, Any]]:
    """Return what a schedule of a line is made of, and its request with its cost as JSON.

    Args:
        config: Resolved, with absolute paths.
        say: Told of warnings.
        online: Whether buckets may be asked.

    Raises:
        ConfigError: The plan's first problem.
    """
    plan = plan_of(config, Asked(scheduled=True), online=online)
    for text in plan.warnings:
        say(f"warning: {text}")
    prepared = prepare(config, compile_line(config, plan))
    return prepared, {"schedule": canonical(make_schedule(prepared)), "estimate": cost_values(plan)}


def _follow(prepared: Prepared, path: str, again: str, say: Say, submitted: Callable[[Submitted], None]) -> int:
    run_id = prepared.run_id
    try:
        ending = follow_regions(prepared, make_view, say=say, submitted=submitted)
    except KeyboardInterrupt:
        say(
            f"interrupted; run {run_id} goes on: `shardline status {run_id} --config {path}` shows it, `shardline "
            f"cancel {run_id} --config {path}` ends it, `shardline submit {again} --wait --run-id {run_id}` follows it"
        )
        return _EXIT_INTERRUPTED
    except TryAgain:
        say(f"the run goes on, if it was submitted; follow it with: shardline submit {again} --wait --run-id {run_id}")
        raise
    if ending.diagnosis is not None:
        found = ending.diagnosis
        said = "\n  ".join(found.evidence.strip().splitlines()) or "nothing"
        say(f"error: the run failed: {found.cause} ({found.kind})\n  to do: {found.advice}\n  said: {said}")
    return ending.exit_code


def _compile(config: RunConfig, plan: Plan, *, cache: bool) -> CompiledLine:
    compiled = compile_line(config, plan)
    return compiled if cache else without_cache(compiled)


def _say_plan(plan: Plan, say: Say) -> None:
    for line in (*(f"warning: {text}" for text in plan.warnings), *describe_cost(plan)):
        say(line)
