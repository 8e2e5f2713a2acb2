"""`shardline submit`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.options import ConfigPath, Debug, Overrides, Prices, ProfileUri, RunId, Template, Yes, ask
from pipelines.reported import load, reported

if TYPE_CHECKING:
    from pipelines.submission.same_work import Adopted
    from pipelines.submission.submit import Prepared, Submitted

_INTERRUPTED = 130

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the request and its cost as JSON; ask nobody.")]
Caching = Annotated[
    bool | None,
    typer.Option(
        "--enable-caching/--no-caching",
        help="Switch the cache of every task on or off [default: as each task says].",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def submit(
        config: ConfigPath,
        overrides: Overrides = None,
        run_id: RunId = "",
        wait: Annotated[
            bool, typer.Option("--wait", help="Follow the run to its end, and climb resources.ladder where it must.")
        ] = False,
        dry_run: DryRun = False,
        template: Template = "",
        tag: Annotated[
            list[str] | None, typer.Option(metavar="TAG", help="Tag of the version in vertex.registry; repeatable.")
        ] = None,
        caching: Caching = None,
        prices: Prices = None,
        profile: ProfileUri = None,
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
            from pipelines.plan.plan import plan_of
            from pipelines.plan.table import cost_values, describe_cost
            from pipelines.rules.submission import Asked
            from pipelines.submission.local_data import find_local_data
            from pipelines.submission.preparations import find_preparations, make_preparations, with_images
            from pipelines.submission.submit import prepare

            resolved = load(config, overrides)
            asked = Asked(run_id=run_id, template=template, tags=tuple(tag or ()))
            local = find_local_data(resolved, _say)
            here = local.given if local else ""
            resolved = local.of(resolved) if local else resolved
            if not dry_run and (todo := find_preparations(resolved, local, keep_images=keep_images)):
                # Nothing is paid for that a plan would refuse afterwards.
                plan_of(with_images(resolved), prices, profile, asked, online=True, local_source=here)
                for line in todo.words:
                    _say(line)
                if not ask("do these", yes=yes):
                    raise typer.Exit(0)
                make_preparations(resolved, todo, _say)
            plan = plan_of(resolved, prices, profile, asked, online=not dry_run, local_source=here)
            prepared = prepare(
                resolved,
                compile_line(resolved, plan),
                run_id=run_id,
                template=template,
                template_spec=plan.template,
                caching=caching,
            )
            for line in (*(f"warning: {text}" for text in plan.warnings), *describe_cost(plan)):
                _say(line)
            if dry_run:
                printed = {**prepared.submission(prepared.run_id).to_json(), "estimate": cost_values(plan)}
                print(json.dumps(printed, indent=1, sort_keys=True))
                return
            code = _submit(
                prepared,
                own_id=bool(run_id),
                tags=tag or [],
                wait=wait,
                upload=bool(resolved.vertex.registry) and not template,
            )
        raise typer.Exit(code)


def _submit(prepared: Prepared, *, own_id: bool, tags: list[str], wait: bool, upload: bool) -> int:
    from pipelines.google import pipeline_client
    from pipelines.submission.same_work import adopt, withdrawn_where_refused

    client = pipeline_client(prepared.config.cloud.region)
    adopted = adopt(client, prepared, own_id=own_id)
    if adopted.is_others:
        _say(f"run {adopted.prepared.run_id} does this work already: it is taken for this submission")
    with withdrawn_where_refused(client, adopted):
        return _run(client, adopted, tags=tags, wait=wait, upload=upload)


def _run(client: Any, adopted: Adopted, *, tags: list[str], wait: bool, upload: bool) -> int:
    from contracts.errors import TryAgain
    from pipelines.runs.follow import make_view
    from pipelines.submission.ladder import climb, make_rungs, rung_submission
    from pipelines.submission.submit import submit, upload_spec

    prepared = adopted.prepared
    if upload:
        prepared = upload_spec(prepared, tags)
        _say(f"template {prepared.template}")
    rungs = make_rungs(prepared.config)
    if not wait:
        made = submit(prepared, rung_submission(prepared, rungs, adopted.rung))
        _tell(made)
        if made.existed and made.state in ("FAILED", "CANCELLED"):
            raise TryAgain(
                f"run {made.name.id} has ended before: {made.state.lower()}; nothing was submitted\n"
                "  to do: take another --run-id, or leave it out and one is made"
            )
        if len(rungs) > 1 and not adopted.rung:
            _say(f"only the first of {len(rungs)} rungs runs ({rungs[0].label}); --wait climbs the others")
        return 0
    running = prepared.run_id

    def submitted(made: Submitted) -> None:
        nonlocal running
        running = made.name.id
        _tell(made)

    try:
        ending = climb(client, prepared, rungs, make_view, say=_say, submitted=submitted)
    except KeyboardInterrupt:
        _say(
            f"interrupted; run {running} goes on: `shardline status {running} --config CONFIG` shows it, `shardline "
            f"cancel {running} --config CONFIG` ends it, `shardline submit CONFIG "
            f"--wait --run-id {prepared.run_id}` follows it"
        )
        return _INTERRUPTED
    except TryAgain:
        _say(
            f"the run goes on, if it was submitted; follow it with: shardline submit CONFIG --wait "
            f"--run-id {prepared.run_id}"
        )
        raise
    if ending.diagnosis is not None:
        found = ending.diagnosis
        said = "\n  ".join(found.evidence.strip().splitlines()) or "nothing"
        _say(f"error: the run failed: {found.cause} ({found.kind})\n  to do: {found.advice}\n  said: {said}")
    return ending.exit_code


def _tell(made: Submitted) -> None:
    """Print a job: its full name on stdout, the rest on stderr."""
    _say(f"run {made.name.id} {'exists: ' + made.state.lower() if made.existed else 'submitted'}")
    _say(made.name.console)
    if made.warning:
        _say(f"warning: {made.warning}")
    print(made.name.resource, flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
