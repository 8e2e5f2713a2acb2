"""`shardline submit`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides, RunId, Yes, ask
from pipelines.reported import load, reported, say

if TYPE_CHECKING:
    from pipelines.plan import Plan
    from pipelines.rules.submission import Asked
    from pipelines.submission.preparations import Outlook
    from pipelines.submission.submit import Prepared, Submitted

_INTERRUPTED = 130

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the request and its cost as JSON; ask nobody.")]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def submit(
        config: ConfigPath,
        overrides: Overrides = None,
        run_id: RunId = "",
        wait: Annotated[
            bool,
            typer.Option("--wait", help="Follow the run to its end; without machines, try the next region."),
        ] = False,
        dry_run: DryRun = False,
        keep_images: Annotated[
            bool, typer.Option("--keep-images", help="Take recorded images though they are of other sources than this.")
        ] = False,
        yes: Yes = False,
        debug: Debug = False,
    ) -> None:
        """Run the line on Vertex AI Pipelines; data of this machine is uploaded and images are built first."""
        code = 0
        with reported(debug):
            from pipelines.graph.compile import compile_line
            from pipelines.plan import plan_of
            from pipelines.rules.submission import Asked
            from pipelines.submission.local_data import find_local_data
            from pipelines.submission.preparations import (
                find_preparations,
                look_ahead,
                make_preparations,
                with_images,
            )
            from pipelines.submission.submit import prepare

            resolved = load(config, overrides)
            asked = Asked(run_id=run_id)
            if dry_run:
                _print_request(look_ahead(resolved, say), asked)
                return
            local = find_local_data(resolved, say)
            here = local.given if local else ""
            resolved = local.of(resolved) if local else resolved
            if todo := find_preparations(resolved, local, keep_images=keep_images):
                # Nothing is paid for that a plan would refuse afterwards.
                plan_of(with_images(resolved), asked, online=True, local_source=here)
                for line in todo.words:
                    say(line)
                if not ask("do these", yes=yes):
                    raise typer.Exit(0)
                make_preparations(resolved, todo, say)
            plan = plan_of(resolved, asked, online=True, local_source=here)
            prepared = prepare(resolved, compile_line(resolved, plan), run_id=run_id)
            _tell_plan(plan)
            code = _follow(prepared) if wait else _submit(prepared)
        raise typer.Exit(code)


def _print_request(ahead: Outlook, asked: Asked) -> None:
    """Print the request that a submission would make; nobody is asked, and nothing is made."""
    from pipelines.graph.compile import compile_line
    from pipelines.plan import cost_values, plan_of
    from pipelines.submission.submit import prepare

    plan = plan_of(ahead.config, asked, local_source=ahead.local_source)
    prepared = prepare(ahead.config, compile_line(ahead.config, plan), run_id=asked.run_id)
    _tell_plan(plan)
    for placeholder in ahead.placeholders:
        say(f"placeholder: {placeholder}")
    printed = {**prepared.submission().to_json(), "estimate": cost_values(plan), "placeholders": ahead.placeholders}
    print(json.dumps(printed, indent=1, sort_keys=True))


def _tell_plan(plan: Plan) -> None:
    from pipelines.plan import describe_cost

    for line in (*(f"warning: {text}" for text in plan.warnings), *describe_cost(plan)):
        say(line)


def _submit(prepared: Prepared) -> int:
    from contracts.errors import TryAgain
    from pipelines.submission.submit import submit

    made = submit(prepared, prepared.submission())
    _tell(made)
    if made.existed and made.state in ("FAILED", "CANCELLED"):
        raise TryAgain(
            f"run {made.name.id} has ended before: {made.state.lower()}; nothing was submitted\n"
            "  to do: take another --run-id, or leave it out and one is made"
        )
    return 0


def _follow(prepared: Prepared) -> int:
    from contracts.errors import TryAgain
    from pipelines.runs.follow import make_view
    from pipelines.runs.regions import follow_regions

    run_id = prepared.run_id
    try:
        ending = follow_regions(prepared, make_view, say=say, submitted=_tell)
    except KeyboardInterrupt:
        say(
            f"interrupted; run {run_id} goes on: `shardline status {run_id} --config CONFIG` shows it, `shardline "
            f"cancel {run_id} --config CONFIG` ends it, `shardline submit CONFIG --wait --run-id {run_id}` follows it"
        )
        return _INTERRUPTED
    except TryAgain:
        say(f"the run goes on, if it was submitted; follow it with: shardline submit CONFIG --wait --run-id {run_id}")
        raise
    if ending.diagnosis is not None:
        found = ending.diagnosis
        said = "\n  ".join(found.evidence.strip().splitlines()) or "nothing"
        say(f"error: the run failed: {found.cause} ({found.kind})\n  to do: {found.advice}\n  said: {said}")
    return ending.exit_code


def _tell(made: Submitted) -> None:
    """Print a job: its full name on stdout, the rest on stderr."""
    say(f"run {made.name.id} {'exists: ' + made.state.lower() if made.existed else 'submitted'}")
    say(made.name.console)
    if made.warning:
        say(f"warning: {made.warning}")
    print(made.name.resource, flush=True)
