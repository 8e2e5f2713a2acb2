"""The command line: `shardline --help`.

Commands parse arguments and print results; the modules that they import do the work. Imports are inside the commands,
so that `--help` loads nothing heavy.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from contracts.environment import settle

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJob

    from contracts.config import RunConfig


GROUPS = {
    "Run on this machine": ("run", "shard", "profile", "train", "export", "predict", "verify", "promote"),
    "Inspect runs": ("runs", "inspect", "report", "tensorboard", "clean"),
    "Google Cloud": (
        *("init", "plan", "compile", "manifests", "submit", "status", "logs", "cancel"),
        *("schedule", "images", "rehearse"),
    ),
    "Data and configuration": ("data", "config"),
}
# click.UsageError: the base class of typer.BadParameter and of errors about unknown options and commands.
_UsageError: Any = typer.BadParameter.__mro__[1]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_EXIT_INTERRUPTED = 130
# In error messages CONFIG is replaced by the path of the configuration, and a stage's --output by this program's --to.
_CONFIG, _OUTPUT = re.compile(r"\bCONFIG\b"), re.compile(r"--output\b")


class Commands(TyperGroup):
    """Command group whose help lists the commands by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section per group."""
        for title, names in GROUPS.items():
            commands = {name: command for name in names if (command := self.get_command(ctx, name)) is not None}
            limit = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
            with formatter.section(title):
                formatter.write_dl([(name, entry.get_short_help_str(limit=limit)) for name, entry in commands.items()])

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command; invalid arguments print two lines and exit with code 2."""
        ends = options.pop("standalone_mode", True)
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except typer.Abort:
            print_status("aborted")
            code = 1
        except _UsageError as error:
            code, text = error.exit_code, error.format_message().replace("Value error, ", "")
            # Without any argument the message is the help.
            name = error.ctx.command_path if error.ctx is not None else "shardline"
            print_status(text if text.startswith("Usage:") else f"error: {text}\n  to do: see `{name} --help`")
        if ends:
            sys.exit(code)
        return code


class Command(TyperCommand):
    """A command that ends on an error with its message on stderr, its exit code, and a traceback with --debug."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "epilog": "--debug shows the traceback of an error."})
        self._debug = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; every command accepts --debug."""
        end = args.index("--") if "--" in args else len(args)
        self._debug = "--debug" in args[:end]
        return super().parse_args(ctx, [word for word in args[:end] if word != "--debug"] + args[end:])

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _UsageError):
            raise
        except BrokenPipeError:
            # The reader (`head`, a pager) closed the pipe: Python must not flush the rest at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:  # noqa: BLE001 - process entry point
            raise typer.Exit(self._report(error, ctx.params.get("config"))) from None

    def _report(self, error: Exception, config: Path | None) -> int:
        """Print an error; return its exit code."""
        from contracts.errors import ErrorDocument, ShardlineError

        attached = getattr(error, "document", None)
        document = attached if isinstance(attached, ErrorDocument) else ErrorDocument.of(error, traceback.format_exc())
        if self._debug:
            print_status(document.traceback)
        message = document.message
        if not isinstance(error, ShardlineError):
            message += "\n  to do: run it with --debug to see the traceback"
        print_status(f"error: {_OUTPUT.sub('--to', _with_path(config, message))}")
        return document.exit_code


def command(name: str | None = None, *, group: typer.Typer | None = None) -> Callable[[_Function], _Function]:
    """Return a decorator that registers a function as a command of the program or of a group."""
    return (group or app).command(name, cls=Command)


app = typer.Typer(
    name="shardline",
    cls=Commands,
    help="Raw data to a TensorRT engine with a proof of parity, in one line of stages.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app, config_app, images_app, schedule_app = (
    typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)
    for text in (
        "Inspect shards.",
        "Inspect configurations.",
        "Container images of the line.",
        "Run a line on a schedule.",
    )
)
for _name, _group in {"data": data_app, "config": config_app, "images": images_app, "schedule": schedule_app}.items():
    app.add_typer(_group, name=_name)


def main() -> None:
    """Run the command line; the entry of the console script."""
    # Child processes (python -m) must not import a user's records/ from the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    settle()
    app(obj=time.time())


def print_status(text: str) -> None:
    """Print a line to stderr and flush."""
    print(text, file=sys.stderr, flush=True)


def load(config: Path, overrides: list[str] | None = None) -> RunConfig:
    """Return the configuration of a command, with absolute paths."""
    from contracts.config.load import load_config
    from pipelines.place import make_absolute

    return make_absolute(load_config(config, overrides or []))


def print_json(values: object) -> None:
    """Print values as JSON."""
    print(json.dumps(values, indent=1, ensure_ascii=False))


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows as CSV with a header; a list or a map is a cell of JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for place, row in enumerate(rows):
        if place == 0:
            writer.writerow(row)
        writer.writerow(json.dumps(cell) if isinstance(cell, (list, dict)) else cell for cell in row.values())


def _opt(text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, **settings)


def _arg(text: str, **settings: Any) -> Any:
    return typer.Argument(help=text, show_default=False, **settings)


# ---- arguments and options that several commands share ----

ConfigPath = Annotated[Path, _arg("YAML file.", metavar="CONFIG")]
Overrides = Annotated[list[str] | None, _arg("Values that win over the file.", metavar="SECTION.KEY=VALUE")]
Run = Annotated[
    str,
    _arg(
        "Folder of a run, or of a line for its newest (path or gs://); below ./runs: ID, LINE/ID, LINE:latest.",
        metavar="RUN",
    ),
]
CloudRun = Annotated[
    str,
    _arg(
        "Id or LINE:latest (with --config), full name, folder of a run or line.",
        metavar="RUN",
    ),
]
Model = Annotated[str, _arg("Folder of an export, or a RUN as for inspect.", metavar="MODEL")]
ShardsFolder = Annotated[str, _arg("Folder of shards.", metavar="URI")]
Table = Annotated[Literal["table", "json", "csv"], _opt("Output format.", "-o", "--format")]
Answer = Annotated[Literal["table", "json"], _opt("Output format.", "-o", "--format")]
ToFolder = Annotated[str | None, _opt("Folder to write [default: the line's own].", "--to", metavar="URI")]
ToFile = Annotated[Path | None, _opt("File to write [default: named after it].", "--to", metavar="FILE")]
Fresh = Annotated[bool, _opt("Delete this configuration's own output first, and start over.", "--fresh")]
Yes = Annotated[bool, _opt("Do it without a question.", "--yes")]
Shards = Annotated[str | None, _opt("Shards to read [default: the line's].", metavar="URI")]
Profile = Annotated[str | None, _opt("Profile report to follow [default: the line's].", metavar="URI")]
Checkpoint = Annotated[str | None, _opt("Training folder to export [default: the line's].", metavar="URI")]
RunId = Annotated[str, _opt("Id of the run; the same id is the same run [made].", metavar="ID")]
DryRun = Annotated[bool, _opt("Print the request and its cost as JSON; ask nobody.", "--dry-run")]
ScheduleId = Annotated[str, _opt("Id of the schedule [default: the line's].", "--id", metavar="ID")]
ConfigOption = Annotated[
    Path | None, _opt("Configuration that names project and region.", "--config", metavar="CONFIG")
]


def _print_version(is_requested: bool) -> None:
    if is_requested:
        import importlib.metadata

        print(f"shardline {importlib.metadata.version('shardline')}", flush=True)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, _opt("Print the version and exit.", "--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself; its help is the app's."""


# ---- run on this machine ----


@command()
def run(context: typer.Context, config: ConfigPath, overrides: Overrides = None, fresh: Fresh = False) -> None:
    """Run the whole line on this machine, reusing finished stages."""
    from contracts.errors import ForwardedError
    from inspection.find import RunPlace
    from inspection.read import read_run
    from inspection.terminal import print_run
    from pipelines.local import run_line

    outcome = run_line(load(config, overrides), fresh=fresh, started_at_s=context.obj)
    if any(stage.uri for stage in outcome.record.stages):
        try:
            view = read_run(RunPlace(outcome.line, outcome.record.id), pictures=False)
            print_run(view, sys.stdout, messages=False)
        except Exception as error:  # noqa: BLE001 - a display error must not hide the run's result
            print_status(f"warning: the run cannot be shown: {error}")
    _print_place(outcome.line)
    if outcome.error is not None:
        raise ForwardedError(outcome.error)


@command()
def shard(
    config: ConfigPath,
    overrides: Overrides = None,
    to: ToFolder = None,
    fresh: Fresh = False,
    dry_run: Annotated[bool, _opt("Print what would be written, and write nothing.", "--dry-run")] = False,
) -> None:
    """Convert class folders, or the rows of a manifest, to shards."""
    if dry_run:
        from pipelines.local import describe_shards

        print(describe_shards(load(config, overrides)), flush=True)
    else:
        _run_stage("shard", config, overrides, to=to, fresh=fresh)


@command()
def profile(
    config: ConfigPath, overrides: Overrides = None, to: ToFolder = None, shards: Shards = None, fresh: Fresh = False
) -> None:
    """Measure batch splits and loader settings on this hardware."""
    from contracts.artifacts import ProfileReport
    from inspection.terminal import describe_training, print_profile
    from pipelines.local import run_stage_alone

    resolved = load(config, overrides)
    uri, reused = run_stage_alone("profile", resolved, to=to, fresh=fresh, shards=shards)
    if reused:
        print("reused: made before, for this configuration and hardware; --fresh measures again")
    report = ProfileReport.load(uri)
    print_profile(report, describe_training(report, resolved), sys.stdout)
    _print_place(uri)


@command()
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    to: ToFolder = None,
    shards: Shards = None,
    profile: Profile = None,
    fresh: Fresh = False,
) -> None:
    """Train, from the newest valid checkpoint if there is one."""
    _run_stage("train", config, overrides, to=to, fresh=fresh, shards=shards, profile=profile)


@command()
def export(
    config: ConfigPath,
    overrides: Overrides = None,
    to: ToFolder = None,
    shards: Shards = None,
    checkpoint: Checkpoint = None,
    fresh: Fresh = False,
) -> None:
    """Export the best checkpoint for serving; prove its parity."""
    _run_stage("export", config, overrides, to=to, fresh=fresh, shards=shards, checkpoint=checkpoint)


@command()
def predict(
    model: Model,
    samples: Annotated[list[str] | None, _arg("Image files, or folders of them; texts.", metavar="SAMPLE...")] = None,
    top: Annotated[int | None, _opt("Labels per sample [1; of several labels all].", metavar="K", min=1)] = None,
    lines: Annotated[str | None, _opt("Texts, one per line; - is stdin.", metavar="FILE")] = None,
    form: Table = "table",
) -> None:
    """Print an exported model's predictions for images or texts."""
    if not samples and lines is None:
        raise typer.BadParameter("no samples: pass images or texts, or a file with --lines", param_hint="SAMPLE...")
    from pipelines.predict import run_predict

    raise typer.Exit(run_predict(model, samples or [], top=top, output=form, lines=lines))


@command()
def verify(model: Model, shards: Shards = None, form: Answer = "table") -> None:
    """Check an export's hashes and program; on its GPU, its engine."""
    from pipelines.predict import run_verify

    code = run_verify(model, shards=shards, as_json=form == "json")
    raise typer.Exit(code)


@command()
def promote(run: Run, why: Annotated[str, _opt("Reason, recorded in production.json.", metavar="TEXT")] = "") -> None:
    """Put a run's export into production by hand, or back."""
    from pipelines.promote import promote as promote_run

    print(f"in production: {promote_run(_run_folder(run), why or 'by hand')}", flush=True)


# ---- look at runs ----


@command()
def runs(
    root: Annotated[
        str,
        _arg("Folder that holds lines, or one line (path or gs://).", metavar="[ROOT]"),
    ] = "runs",
    filters: Annotated[
        list[str] | None, _arg("Runs that meet all: state=failed, train.precision=bf16.", metavar="KEY=VALUE")
    ] = None,
    form: Table = "table",
) -> None:
    """List the runs below a folder or bucket, the newest first."""
    from contracts.storage import normalise
    from inspection.find import has_outputs, list_places
    from inspection.runs import list_runs
    from inspection.terminal import print_runs

    if "=" in root and "://" not in root and not Path(root).exists():
        root, filters = "runs", [root, *(filters or [])]
    rows = list_runs(root, filters or [])
    if form == "table" and not rows:
        count = len(list_places(root)) if filters else 0
        outputs = ", but outputs of stages: `shardline run CONFIG` reuses them and records a run"
        none = f"no runs here{outputs if has_outputs(normalise(root)) else ''}"
        print(f"none of {count} runs meets {' '.join(filters or [])}" if count else none)
    elif form == "table":
        print_runs(rows, sys.stdout)
    else:
        (print_json if form == "json" else print_csv)([row.model_dump(mode="json") for row in rows])


@command("inspect")
def inspect_run(
    run: Run,
    other: Annotated[str, _arg("A second run: print the differences.", metavar="OTHER")] = "",
    form: Answer = "table",
) -> None:
    """Print stages, data, training, cost and proof of a run, or what differs between two."""
    from inspection.differences import compare_runs
    from inspection.find import find_place
    from inspection.read import read_run
    from inspection.terminal import print_differences, print_run, to_json

    views = [read_run(find_place(_run_folder(name)), pictures=False) for name in (run, other) if name]
    if len(views) == 2:
        if form == "json":
            print_json([change.model_dump() for change in compare_runs(*views)])
        else:
            print_differences(views[0], views[1], sys.stdout)
    elif form == "json":
        print(to_json(views[0]))
    else:
        print_run(views[0], sys.stdout)


@command()
def report(
    run: Run, to: Annotated[str | None, _opt("Path or gs:// [in the run's folder].", "--to", metavar="FILE")] = None
) -> None:
    """Write the page of a run: one self-contained HTML file."""
    from inspection.report.page import write_report

    print(write_report(_run_folder(run), to), flush=True)


@command()
def tensorboard(
    runs: Annotated[
        list[str],
        _arg(
            "Up to eight folders of runs or trainings, or of lines for their newest; below ./runs as for inspect.",
            metavar="RUN",
        ),
    ],
    host: Annotated[str, _opt("Where to listen; there is no password.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int | None, _opt("0: a free one [6006, or the next free].", min=0, max=65535)] = None,
) -> None:
    """Open TensorBoard on the logs of runs, until Ctrl-C."""
    from inspection.tensorboard import show

    raise typer.Exit(show(runs, host=host, port=port, say=lambda url: print(url, flush=True), warn=print_status))


@command()
def clean(
    line: Annotated[str, _arg("Folder of a line (path or gs://).", metavar="LINE")],
    keep_last: Annotated[int, _opt("Keep the newest N runs and what they name.", metavar="N", min=1)],
    dry_run: Annotated[bool, _opt("Only list.", "--dry-run")] = False,
    yes: Yes = False,
) -> None:
    """Delete outputs that no kept run uses, after confirmation."""
    from contracts.errors import ConfigError
    from contracts.storage import normalise
    from pipelines.clean import delete, find_leftovers

    uri = normalise(line)
    leftovers = find_leftovers(uri, keep_last)
    for leftover in leftovers:
        print(f"  {leftover.name}  {leftover.num_bytes} bytes")
    print(f"{len(leftovers)} folders, {sum(leftover.num_bytes for leftover in leftovers)} bytes", flush=True)
    if leftovers and not dry_run and not yes and not sys.stdin.isatty():
        raise ConfigError(
            "nothing was changed: there is no terminal to ask on",
            allowed="a terminal, or --yes",
            todo="read the list above, then run it again with --yes",
        )
    if leftovers and not dry_run and (yes or typer.confirm("delete them?")):
        in_use = delete(uri, leftovers, keep_last)
        for leftover in in_use:
            print_status(f"{leftover.name} was not deleted: it is in use by now")
        print(f"deleted {len(leftovers) - len(in_use)} folders")


# ---- Google Cloud ----


@command()
def init(
    project: Annotated[str, _opt("Id of the Google Cloud project.", metavar="ID")],
    bucket: Annotated[str, _opt("Bucket of data and results; it need not exist.", metavar="NAME")],
    source: Annotated[str, _opt("The data: a folder or table here, or gs://.", metavar="PATH")],
    region: Annotated[str, _opt("Region of bucket and jobs.", metavar="REGION")] = "us-central1",
    task: Annotated[str, _opt("Training task.", metavar="NAME")] = "image_classification",
    to: ToFile = None,
) -> None:
    """Write a configuration for a project of Google Cloud."""
    from pipelines.initial_config import write_initial

    path = write_initial(to, source, task, project=project, bucket=bucket, region=region)
    print(path, flush=True)
    print_status(f"next: shardline plan {path} (docs/quickstart-vertex.md: what the project needs)")


@command()
def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    run_id: RunId = "",
    form: Answer = "table",
    hours: Annotated[
        float | None, _opt("Compare ways to pay for so many hours a month.", "--hours-per-month", metavar="H")
    ] = None,
    own_usd: Annotated[float | None, _opt("Beside a workstation of this price.", min=1, metavar="USD")] = None,
    own_watts: Annotated[float, _opt("Its power while it trains.", min=0, metavar="W")] = 500,
    own_years: Annotated[float, _opt("Years until it is written off.", min=0.5, metavar="N")] = 3,
    own_usd_per_kwh: Annotated[float, _opt("Price of its power.", min=0, metavar="USD")] = 0.2,
) -> None:
    """Show what a submission would create and cost.

    Exit code 2 when it cannot work.
    """
    from contracts.errors import EXIT_OK, EXIT_USER_ERROR
    from pipelines.monthly import Workstation, monthly_costs, print_monthly_costs
    from pipelines.plan import plan_lines, to_json
    from pipelines.submit import look_ahead

    resolved = load(config, overrides)
    workstation = None if own_usd is None else Workstation(own_usd, own_watts, own_years, own_usd_per_kwh)
    costs = [] if hours is None else monthly_costs(resolved, hours, workstation)
    *_, submission_plan = look_ahead(resolved, print_status, run_id=run_id, complete=True)
    if form == "json":
        print(to_json(submission_plan, costs))
    else:
        print(_with_path(config, "\n".join(plan_lines(submission_plan))))
        if hours is not None:
            print_monthly_costs(resolved, hours, costs, sys.stdout)
    raise typer.Exit(EXIT_USER_ERROR if submission_plan.problems else EXIT_OK)


@command("compile")
def compile_config(
    config: ConfigPath,
    overrides: Overrides = None,
    to: ToFile = None,
    place: Annotated[Literal["vertex", "kubeflow"], _opt("Vertex AI, or Kubeflow Pipelines on GKE.")] = "vertex",
) -> None:
    """Write the pipeline for Vertex AI (.yaml or .json), or for Kubeflow (.yaml)."""
    from pipelines.compile import require_target, write_file, write_spec
    from pipelines.submit import make_ready

    resolved = load(config, overrides)
    path = to or Path(f"{resolved.run.name}.pipeline.yaml")
    if place == "kubeflow":
        from pipelines.images import find_images
        from pipelines.kubeflow import compile_kubeflow

        require_target(path, (".yaml", ".yml"))
        filled, missing = find_images(resolved)
        for text in missing:
            print_status(f"not built yet: {text}; run `shardline images build` before this is used")
        write_file(compile_kubeflow(filled), path)
        print(path)
        return
    require_target(path)
    ready = make_ready(resolved, print_status)
    write_spec(ready.compiled.spec, path)
    print(f"{path}\nsha256:{ready.compiled.hash}")


@command()
def manifests(
    config: ConfigPath,
    stage: Annotated[Literal["shard", "profile", "train", "export"], _opt("The stage.")],
    overrides: Overrides = None,
    kind: Annotated[Literal["job", "trainjob"], _opt("Indexed Job, or TrainJob of Kubeflow Trainer v2.")] = "job",
    shards: Annotated[str, _opt("Shards, for profile, train and export.", metavar="URI")] = "",
    profile: Annotated[str, _opt("Profile that train follows.", metavar="URI")] = "",
    checkpoint: Annotated[str, _opt("Training that export takes.", metavar="URI")] = "",
    queue: Annotated[str, _opt("Kueue's LocalQueue.", metavar="NAME")] = "",
    networks: Annotated[str, _opt("GKE's Networks between GPUs of A3 and A4 machines.", metavar="A,B,...")] = "",
) -> None:
    """Print a stage as YAML for kubectl (Google Kubernetes Engine)."""
    from pipelines.images import require_images
    from pipelines.manifests import StageJob, render

    # kubectl may apply it at once: no placeholders.
    resolved = require_images(load(config, overrides))
    inputs = {"shards": shards, "profile": profile, "checkpoint": checkpoint}
    names = [name for name in networks.split(",") if name]
    job = StageJob(resolved, stage, {name: uri for name, uri in inputs.items() if uri}, queue, names)
    print(render(job.documents(kind), job))


@command()
def submit(
    config: ConfigPath,
    overrides: Overrides = None,
    run_id: RunId = "",
    wait: Annotated[bool, _opt("Follow the run; without machines, try the next region.", "--wait")] = False,
    dry_run: DryRun = False,
    no_cache: Annotated[bool, _opt("Run each task, whatever the cache of Vertex AI has.", "--no-cache")] = False,
) -> None:
    """Run the line on Vertex AI Pipelines.

    Data of this machine is uploaded first.
    """
    from dataclasses import asdict

    from pipelines.plan import describe_cost
    from pipelines.submit import describe_job, make_job, make_ready, make_run_id, submit_once

    resolved = load(config, overrides)
    ready = make_ready(resolved, print_status, run_id=run_id, online=not dry_run, cache=not no_cache)
    run_id = run_id or make_run_id(resolved.run.name)
    for line in describe_cost(ready.plan.cost):
        print_status(line)
    if dry_run:
        request = describe_job(make_job(ready, run_id, offline=True))
        print_json({**request, "estimate": asdict(ready.plan.cost)})
        return
    from contracts.errors import TryAgain
    from pipelines.follow import submit_and_wait

    job_names: list[str] = []

    def announce(name: str) -> None:
        print(name, flush=True)
        job_names.append(name)

    hint = f"the same command with --run-id {run_id} goes on"
    try:
        if wait:
            raise typer.Exit(submit_and_wait(ready, run_id, print_status, announce))
        announce(submit_once(ready, run_id, print_status).resource_name)
    except TryAgain:
        print_status(hint)
        raise
    except KeyboardInterrupt:
        for name in job_names[-1:]:
            print_status(
                f"interrupted; the run goes on: see `shardline status {name}`; `shardline cancel {name}` ends it"
            )
        print_status(hint)
        raise typer.Exit(_EXIT_INTERRUPTED) from None


@command()
def status(run: CloudRun, config: ConfigOption = None, form: Answer = "table") -> None:
    """Show tasks and jobs of a submitted run, and why it failed."""
    from pipelines.runs import read_status, status_lines

    *earlier, newest = map(read_status, _find_runs(run, config))
    if form == "json":
        print_json({**newest, "earlier": earlier})
    else:
        for entry in (*earlier, newest):
            print("\n".join(status_lines(entry)))


@command()
def logs(
    run: CloudRun,
    config: ConfigOption = None,
    task: Annotated[str, _opt("Only this task, e.g. train.", metavar="NAME")] = "",
    machine: Annotated[str, _opt("Only this machine, e.g. workerpool1-0.", metavar="NAME")] = "",
    follow: Annotated[bool, _opt("Go on until the run has ended.", "-f", "--follow")] = False,
) -> None:
    """Print the logs of a submitted run's tasks and jobs."""
    from pipelines.logs import read_logs

    for job in _find_runs(run, config):
        print_status(f"run {job.name} in {job.location}")
        for line in read_logs(job, task=task, machine=machine, follow=follow):
            print(line, flush=True)


@command()
def cancel(run: CloudRun, config: ConfigOption = None) -> None:
    """Cancel a submitted run and its jobs; wait for their end."""
    from pipelines.follow import cancel as cancel_run
    from pipelines.submit import state_of

    for job in _find_runs(run, config):
        jobs = cancel_run(job, print_status)
        print(f"run {job.name} in {job.location}: {state_of(job)}; none of its {len(jobs)} jobs runs any more")


@command("create", group=schedule_app)
def create_schedule(config: ConfigPath, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Schedule a line that is not scheduled yet."""
    from dataclasses import asdict

    from pipelines.schedule import create, describe, make_schedule
    from pipelines.submit import make_ready, to_dict

    ready = make_ready(load(config, overrides), print_status, scheduled=True, online=not dry_run)
    if dry_run:
        request = make_schedule(ready, offline=True)._gca_resource
        print_json({"schedule": to_dict(request), "estimate": asdict(ready.plan.cost)})
    else:
        print(describe(create(ready, print_status)))


@command("list", group=schedule_app)
def list_schedules(config: ConfigPath, overrides: Overrides = None, form: Table = "table") -> None:
    """Print the schedules of the configuration's project and region."""
    from pipelines.schedule import describe, to_row
    from pipelines.schedule import list_schedules as list_all

    schedules = list_all(load(config, overrides))
    if form == "table":
        print("\n".join(map(describe, schedules)) or "no schedules here")
    else:
        (print_json if form == "json" else print_csv)(list(map(to_row, schedules)))


@command("pause", group=schedule_app)
def pause_schedule(config: ConfigPath, overrides: Overrides = None, schedule_id: ScheduleId = "") -> None:
    """Pause a line's schedule; its current run continues."""
    print(f"schedule {_change_schedule('pause', config, overrides, schedule_id)}: paused")


@command("resume", group=schedule_app)
def resume_schedule(config: ConfigPath, overrides: Overrides = None, schedule_id: ScheduleId = "") -> None:
    """Resume a line's schedule."""
    print(f"schedule {_change_schedule('resume', config, overrides, schedule_id)}: active")


@command("delete", group=schedule_app)
def delete_schedule(config: ConfigPath, overrides: Overrides = None, schedule_id: ScheduleId = "") -> None:
    """Delete a line's schedule; its current run continues."""
    print(f"schedule {_change_schedule('delete', config, overrides, schedule_id)}: deleted")


@command("build", group=images_app)
def build_images(
    config: ConfigPath,
    overrides: Overrides = None,
    tensorrt: Annotated[str, _opt("Version of TensorRT, or none [the newest Triton's].", metavar="VERSION")] = "",
    cuda: Annotated[Literal["cu126", "cu130"] | None, _opt("CUDA of torch [as the GPUs need].")] = None,
) -> None:
    """Build both images by Cloud Build, and record the digests that a submission pins."""
    from pipelines import images

    record = images.build_images(load(config, overrides), print_status, cuda=cuda, tensorrt=tensorrt)
    print(f"cpu: {record.cpu}\ngpu: {record.gpu}")


@command()
def rehearse(
    config: Annotated[Path | None, _arg("YAML file; --serve does without.", metavar="CONFIG")] = None,
    overrides: Overrides = None,
    source: Annotated[Path | None, _opt("Local data in place of a gs:// sharding.source.", metavar="PATH")] = None,
    weights: Annotated[Path | None, _opt("Local weights in place of a gs:// model.weights.", metavar="PATH")] = None,
    preempt: Annotated[int, _opt("Number of preemptions.", metavar="N", min=0, max=100)] = 0,
    faults: Annotated[Path | None, _opt("JSON list of bucket faults (rehearsal/gcs).", metavar="RULES")] = None,
    stockout: Annotated[list[str] | None, _opt("Region without machines.", metavar="REGION")] = None,
    # At 0.5, all six attempts of a client fail once in 64 requests; more would exhaust the clients' retries.
    storage_faults: Annotated[
        float, _opt("Share of requests to buckets that fail (503).", metavar="RATE", min=0, max=0.5)
    ] = 0.0,
    schedule_days: Annotated[float, _opt("Create the schedule; let N days pass.", metavar="N", min=0)] = 0.0,
    time_scale: Annotated[float, _opt("Seconds per simulated second.", metavar="X", min=0.001, max=100)] = 0.1,
    seed: Annotated[int | None, _opt("Random seed of preemptions and storage faults [0].")] = None,
    processes: Annotated[int | None, _opt("Training processes per machine [as many as fit].", min=1)] = None,
    samples: Annotated[int | None, _opt("Most files of the source to copy [all].", metavar="N", min=1)] = None,
    serve: Annotated[bool, _opt("Only start the cloud, print its variables, serve.", "--serve")] = False,
    clock_rate: Annotated[
        float, _opt("With --serve: the cloud's seconds per second.", metavar="X", min=0.001, max=604800)
    ] = 1.0,
    keep: Annotated[Path | None, _opt("Keep buckets, machines and logs there.", metavar="FOLDER")] = None,
    form: Answer = "table",
) -> None:
    """Submit to a simulated Google Cloud on this machine."""
    from pipelines.rehearse.options import RehearsalOptions

    options = RehearsalOptions(
        source=source,
        weights=weights,
        samples=samples,
        preemptions=preempt,
        stockouts=tuple(stockout or ()),
        faults=faults,
        storage_fault_rate=storage_faults,
        schedule_days=schedule_days,
        time_scale=time_scale,
        seed=seed,
        processes=processes,
        clock_rate=clock_rate,
    )
    options.check(has_config=config is not None, serve=serve)
    resolved = None if config is None else load(config, overrides)
    if resolved is not None:
        options.check_for(resolved)
    from rehearsal.leftovers import claimed_folder

    with claimed_folder(keep) as folder:
        if resolved is None or serve:
            from pipelines.rehearse.serve import serve as serve_cloud

            serve_cloud(resolved, options, folder, sys.stdout, sys.stderr, as_json=form == "json")
            return
        from pipelines.rehearse import rehearse as rehearsing
        from pipelines.rehearse.result import print_result, to_json

        result = rehearsing.rehearse(resolved, options, folder)
    print(to_json(result)) if form == "json" else print_result(result, sys.stdout, kept_folder=keep)
    rehearsing.check(result)


# ---- data and configuration ----


@command("show", group=config_app)
def show_config(
    config: ConfigPath,
    overrides: Overrides = None,
) -> None:
    """Print the resolved configuration; docs/configuration.md has every key."""
    from contracts.config.load import load_config, to_yaml

    print(to_yaml(load_config(config, overrides or [])), end="")


@command("describe", group=data_app)
def describe_data(
    uri: Annotated[str, _arg("Folder of shards, or a RUN as for inspect.", metavar="URI")],
    split: Annotated[
        Literal["train", "validation", "test"] | None, _opt("List the samples of a split: path and class.")
    ] = None,
    grid: Annotated[Path | None, _opt("Write pictures too.", metavar="FILE.png")] = None,
    form: Answer = "table",
) -> None:
    """Print the contents of shards."""
    from contracts.artifacts import ShardManifest
    from records.tools.describe import describe, draw_grid, list_samples

    folder = _find_shards(uri)
    manifest = ShardManifest.load(folder)
    if split is not None:
        samples = list_samples(folder, manifest, split)
        if form == "json":
            print_json(list(samples))
        else:
            for sample in samples:
                print(sample["path"], ", ".join(sample.get("labels") or [sample.get("label") or ""]), sep="\t")
    elif form == "json":
        print_json(manifest.model_dump(mode="json", exclude={"shards"}))
    else:
        print("\n".join(describe(manifest)))
    if grid is not None:
        print_status(f"{grid}: {draw_grid(folder, manifest, grid)} pictures")


@command("verify", group=data_app)
def verify_data(
    uri: ShardsFolder,
    processes: Annotated[int | None, _opt("Processes that read [default: by the cores].", min=1)] = None,
    stored: Annotated[bool, _opt("Compare the bucket's own checksums; read nothing.", "--stored")] = False,
    form: Answer = "table",
) -> None:
    """Compare every byte of shards with its checksum; exit code 1 when something is wrong."""
    from contracts.errors import CheckFailed
    from contracts.storage import normalise
    from records.tools.verify import verify as verify_shards

    damage = verify_shards(normalise(uri), processes=processes, progress=_count_files("verify"), stored=stored)
    if form == "json":
        print_json({"uri": uri, "damage": damage})
    if damage:
        raise CheckFailed("\n  ".join([f"{uri} is damaged", *damage]))
    if form == "table":
        print("every checksum is right")


@command("adopt", group=data_app)
def adopt_data(
    uri: ShardsFolder,
    split: Annotated[list[str] | None, _opt("Files of a split [train*, val*, test*].", metavar="NAME=PATTERN")] = None,
    classes: Annotated[Path | None, _opt("Names of the classes, one per line.", metavar="FILE")] = None,
) -> None:
    """Write indices and a manifest for WebDataset or TFRecord shards made elsewhere."""
    from contracts.storage import normalise
    from records.tools.adopt import adopt, parse_patterns, read_classes
    from records.tools.describe import describe

    manifest = adopt(
        normalise(uri),
        patterns=parse_patterns(split or []),
        class_names=read_classes(classes) if classes else None,
        progress=_count_files("adopt"),
    )
    print("\n".join(describe(manifest)))


def _find_shards(location: str) -> str:
    """Return the URI of a folder of shards, given that folder, a run (as for `find_place`), or a line without runs.

    Of a line without runs it is the newest one.
    """
    from contracts import storage
    from contracts.artifacts import MANIFEST_NAME

    uri = storage.normalise(location)
    if storage.exists(storage.join(uri, MANIFEST_NAME)):
        return uri
    from contracts.errors import ConfigError, DataError
    from inspection.find import find_place
    from inspection.read import find_folder

    try:
        folder = find_folder(find_place(location), "shard")
    except ConfigError:
        root = storage.join(uri, "shard")
        manifests = [storage.join(root, name, MANIFEST_NAME) for name in storage.list_names(root)]
        finished = [(storage.info(manifest).updated_s, manifest) for manifest in manifests if storage.exists(manifest)]
        folder = max(finished)[1].rpartition("/")[0] if finished else None
    if folder is None or not storage.exists(storage.join(folder, MANIFEST_NAME)):
        raise DataError(
            f"{location} holds no {MANIFEST_NAME}, and is no run that has shards",
            allowed="the folder that stage shard has printed, or a run (LINE, LINE/runs/ID or an id below ./runs)",
            todo="check the path; `shardline runs` lists the runs",
        )
    return folder


def _with_path(config: Path | None, text: str) -> str:
    """Replace CONFIG in a text by the path of the configuration."""
    return text if config is None else _CONFIG.sub(lambda _: shlex.quote(str(config)), text)


def _run_stage(stage: str, config: Path, overrides: list[str] | None, **options: Any) -> None:
    """Run one stage, and print its folder."""
    from pipelines.local import run_stage_alone

    uri, _ = run_stage_alone(stage, load(config, overrides), **options)
    _print_place(uri)


def _run_folder(run: str) -> str:
    """Return a run as `find_place` takes it; of the full name of a PipelineJob the URI of its folder."""
    if not run.startswith("projects/"):
        return run
    from contracts.result import run_uri
    from pipelines.runs import find_runs, line_of

    (job,) = find_runs(run)
    return run_uri(line_of(job), job.name)


def _print_place(uri: str) -> None:
    from contracts import storage

    print(storage.display(uri), flush=True)


def _find_runs(run: str, config: Path | None) -> list[PipelineJob]:
    from pipelines.runs import find_runs

    return find_runs(run, config=load(config) if config else None)


def _change_schedule(
    action: Literal["pause", "resume", "delete"], config: Path, overrides: list[str] | None, schedule_id: str
) -> str:
    """Change the schedule of a line, and return its id."""
    from pipelines.schedule import change, find_schedule

    schedule = find_schedule(load(config, overrides), schedule_id)
    change(schedule, action)
    return str(schedule.name)


def _count_files(name: str) -> Callable[[int, int], None]:
    """Return a progress callback that prints the number of finished files to stderr, about twenty times."""

    def count(num_done: int, total: int) -> None:
        if num_done * 20 // total != (num_done - 1) * 20 // total:
            print_status(f"{name}: {num_done} of {total} files")

    return count


if __name__ == "__main__":
    main()
