"""The data report of a run: made when its shards are there, left in the run's results, and obeyed."""

from __future__ import annotations

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ShardManifest
from contracts.artifacts.data_report import REPORT_NAME, DataReport
from contracts.config import ValidateSection
from contracts.errors import DataError
from contracts.result import RESULTS_FOLDER, RUNS_FOLDER, find_result, run_uri
from records.report.report import Earlier, make_report

# Runs that are looked at, the newest first, for one that has shards.
_TRIED = 20


def report_uri(line: str, run_id: str) -> str:
    """Return where the data report of a run is."""
    return storage.join(run_uri(line, run_id), RESULTS_FOLDER, REPORT_NAME)


def judge_data(
    line: str, run_id: str, shards: str, validate: ValidateSection, manifest: ShardManifest | None = None
) -> DataReport:
    """Compare a run's shards with those of the run before it, and leave the report with the run.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run; empty: the work is for no run, only the limits of fields are asked, and nothing is left.
        shards: Folder of its shards.
        validate: What is allowed.
        manifest: That of its shards, where the caller has it.

    Raises:
        DataError: Shards cannot be read.
    """
    report = make_report(shards, validate, find_earlier(line, run_id) if run_id else [], manifest)
    if run_id:
        storage.replace(report_uri(line, run_id), (report.model_dump_json(indent=1) + "\n").encode())
    return report


def find_earlier(line: str, run_id: str) -> list[Earlier]:
    """Return the shards of the newest other run, by its id, that has some; empty: there is none."""
    names = storage.list_names(storage.join(line, RUNS_FOLDER))
    # Beside the runs of this machine lie their locks, whose names begin with a dot.
    runs = (name for name in names if name < run_id and not name.startswith("."))
    for other in sorted(runs, reverse=True)[:_TRIED]:
        try:
            found = find_result(line, other, "shard")
        except DataError:
            continue
        if found is not None and storage.exists(storage.join(found.uri, MANIFEST_NAME)):
            return [Earlier(f"run {other}", found.uri)]
    return []


def require_sound(report: DataReport, *, named: int = 5) -> None:
    """Refuse data that the configuration does not allow.

    Raises:
        DataError: Something failed; it names field, value and limit.
    """
    if report.verdict != "fail":
        return
    more = f" and {len(report.problems) - named} more" if len(report.problems) > named else ""
    shards = storage.display(report.shards)
    raise DataError(
        f"the data in {shards} fails: {'; '.join(report.problems[:named])}{more}",
        allowed="data within the limits of section validate (docs/retraining.md)",
        todo=f"look at the data (`shardline data describe {shards}`); if it is as it should be, set the key that is "
        "named to a larger limit or to warn and run again: the shards are finished, and are not written again",
    )
