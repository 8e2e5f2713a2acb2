"""`shardline report`: the page of a run as a file, in the run's folder or where the user wants it."""

from __future__ import annotations

from contracts import storage
from contracts.errors import ConfigError, StorageError
from inspection.page import render_report
from inspection.page.links import elsewhere
from inspection.run.find import find_place
from inspection.run.read import read_run

PAGE_NAME = "report.html"
# What every page begins with.
_HEAD = b'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'


def write_report(run: str, output: str | None) -> str:
    """Write the page of a run and return where it is, as a user would type it.

    Args:
        run: Folder of a run or of a line, or a run's id below ./runs.
        output: File to write, where nothing is or an earlier page; None: report.html in the run's folder.

    Raises:
        ConfigError: There is no such run, or the file cannot be written.
    """
    place = find_place(run)
    target = storage.normalise(output) if output else storage.join(place.folder, PAGE_NAME)
    if storage.is_local(target) and storage.local_path(target).is_dir():
        target = storage.join(target, PAGE_NAME)
    _require_replaceable(target)
    # Beside the run's own documents, links to them stay right when the whole line is moved or copied.
    is_beside = target.rpartition("/")[0] == place.folder
    view = read_run(place)
    page = render_report(view, href=None if is_beside else elsewhere)
    try:
        storage.replace(target, page.encode())
    except (OSError, StorageError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.given
        raise ConfigError(
            f"{storage.display(target)} cannot be written ({reason})",
            allowed="a file in a folder that you may write",
            todo="pass --to FILE",
        ) from None
    return storage.display(target)


def _require_replaceable(target: str) -> None:
    """Refuse to write over what is no page of ours."""
    try:
        head = storage.read_range(target, 0, len(_HEAD))
    except (OSError, StorageError):
        # Not there; what cannot be written is said when it is.
        return
    if head != _HEAD:
        raise ConfigError(
            f"{storage.display(target)} is there, and is no page of a run",
            allowed="a new file, or an earlier page, which is replaced",
            todo="choose another --to, or delete the file yourself",
        )
