"""`shardline predict`: predictions of a finished export for image files, texts or samples of an own task.

    python -m trainer.predict.command --folder URI [--config-json TEXT] [--top K] [-o FORMAT] [--lines FILE] [SAMPLE...]

Every file is compared with the manifest before it is used, and the export's predict.py is not executed. The engine runs
if the machine has its GPU and the package that built it; otherwise ONNX Runtime runs the shipped graph on the CPU.
stderr has the runtime. Samples of an own task are prepared by the run's code, from --config-json. Exit codes are those
of contracts.errors; with an unusable sample the exit code is 2, after all other samples are predicted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.config import RunConfig
from contracts.config.load import read_stage_config
from contracts.errors import (
    EXIT_OK,
    EXIT_USER_ERROR,
    CheckFailed,
    ConfigError,
    DataError,
    ErrorDocument,
    StorageError,
)
from contracts.process import end_with_parent, run_process, thread_environment, threads_per_rank
from trainer.export.runtime import describe_target, gpu_target
from trainer.predict.bundle import BUNDLE_NAMES, kind_of

if TYPE_CHECKING:
    from trainer.export.arrays import Array, Arrays
    from trainer.export.engine import Runner


class CheckedFolder:
    """The files of a finished export, each compared with the manifest before it is used.

    A context manager: files of a bucket are copied, and the copies are deleted at its end.

    Args:
        uri: Its folder.

    Attributes:
        document: Its manifest.

    Raises:
        DataError: There is no manifest, or it was changed.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.document = ExportManifest.load(uri)
        if inconsistency := self.document.inconsistency():
            raise self.damaged(inconsistency)
        self._entries = {entry.name: entry for entry in self.document.shipped_files()}
        self._copies: Path | None = None
        self._stack = ExitStack()

    def __enter__(self) -> CheckedFolder:
        if not storage.is_local(self.uri):
            self._copies = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="shardline-export-")))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def take(self, name: str) -> Path:
        """Return the local path of a file that agrees with the manifest.

        Raises:
            DataError: It does not agree, or the manifest has no such file.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise self.damaged(f"its manifest has no {name}")
        if self._copies is None:
            path, copy = storage.local_path(entry.uri(self.uri)), None
        else:
            path = copy = self._copies / name
            path.parent.mkdir(parents=True, exist_ok=True)
        if damage := entry.damage(self.uri, copy=copy):
            raise self.damaged(damage)
        return path

    def damaged(self, damage: str) -> DataError:
        """Return the error of a damaged export."""
        return DataError(
            f"the export in {storage.display(self.uri)} is damaged: {damage}",
            allowed="an unchanged export",
            todo="copy the whole folder again, or run the export stage again with --fresh",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="predict", allow_abbrev=False)
    parser.add_argument("samples", nargs="*", metavar="SAMPLE")
    parser.add_argument("--folder", required=True, type=storage.normalise)
    parser.add_argument("--config-json", help="keys of the run's configuration; an own task needs them")
    parser.add_argument("--top", type=int)
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table")
    parser.add_argument("--lines")
    options = parser.parse_args(arguments)
    os.environ.update(thread_environment(threads_per_rank(1)))
    try:
        config = None if options.config_json is None else read_stage_config(options.config_json)
        with CheckedFolder(options.folder) as folder:
            return _answer(folder, config, options)
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        failure = ErrorDocument.of(error)
        sys.stdout.flush()
        sys.stderr.write(f"predict: error: {failure.message}\n")
        return failure.exit_code


def _answer(folder: CheckedFolder, config: RunConfig | None, options: argparse.Namespace) -> int:
    from trainer.predict import program

    kind, document = kind_of(folder.document.task), folder.document
    header: Sequence[str]
    if kind == "own":
        if options.top is not None:
            raise ConfigError(
                f"--top {options.top}",
                allowed="--top for a task of the tool: an own task has one answer per sample",
                todo="leave it out",
            )
        # It imports torch.
        from trainer.predict.own_task import OwnModel

        model: Any = OwnModel.of(folder.uri, document, config)
        is_text, header = model.is_text, ("text" if model.is_text else "file", "answer")
    else:
        paths = [folder.take(name) for name in BUNDLE_NAMES[kind]]
        model, is_text = program.open_model(paths[0].parent), kind == "texts"
        header = model.header
    if options.lines is not None and not is_text:
        raise ConfigError("--lines", allowed="--lines for a model of texts", todo="name image files or their folders")
    if is_text:
        try:
            names = program.read_texts(options.samples, options.lines)
        except ValueError as error:
            allowed = "texts, or --lines FILE with one text per line, - for standard input"
            raise ConfigError(str(error), allowed=allowed, todo="pass one of them") from None
    else:
        names = program.find_images(options.samples, _list_folder)
    run, description = open_runner(folder)
    sys.stderr.write(f"predict: {description}\n")
    unusable: list[str] = []
    read: Callable[[str], Any] = str if is_text else _read
    rows = program.predict(model, run, names, read, options.top, unusable)
    program.write_rows(header, rows, options.output)
    if unusable:
        sys.stderr.write(f"predict: {len(unusable)} of {len(names)} could not be used\n")
    return EXIT_USER_ERROR if unusable else EXIT_OK


def _read(name: str) -> bytes:
    if "://" not in name:
        return Path(name).read_bytes()
    try:
        return storage.read_bytes(storage.normalise(name))
    except StorageError as error:
        raise OSError(error.given) from None


def _list_folder(path: str) -> list[str] | None:
    """Return the files of a folder (of a bucket: a URI that ends with /), relative to it; None: it is no folder."""
    from trainer.predict.program import list_folder

    if "://" not in path:
        return list_folder(path)
    return [entry.name for entry in storage.list_objects(storage.normalise(path))] if path.endswith("/") else None


# --- runners ----------------------------------------------------------------------------------------------------------


def open_runner(folder: CheckedFolder) -> tuple[Runner, str]:
    """Return a function that runs the model for any batch, and its description."""
    from trainer.export.engine import graph_runtime, open_graph

    engine, description = open_engine(folder)
    if engine is not None:
        return engine, description
    document, threads = folder.document, threads_per_rank(1)
    path = folder.take(document.served if document.engine is None else document.graph().name)
    description = f"{path.name} by {graph_runtime()} on the CPU, threads: {threads} ({description})"
    return open_graph(path, threads=threads, precision=document.precision), description


def open_engine(folder: CheckedFolder) -> tuple[Runner | None, str]:
    """Return a function that runs the engine for any batch, and its description.

    Without the engine's GPU: None, and the reason.
    """
    entry, gpu = folder.document.engine, gpu_target()
    if entry is None:
        return None, "the export has no engine"
    if gpu != entry.target:
        actual = "no GPU" if gpu is None else f"a GPU of {gpu}"
        return None, f"{actual}, the engine is for {describe_target(entry.target)}"
    # It imports numpy, and torch for opening an engine.
    from trainer.export import engine

    try:
        run = engine.open_engine(folder.take(entry.name), engine.builder_of(entry), folder.document.signature)
    except (CheckFailed, ConfigError) as error:
        return None, str(error).partition("\n")[0]
    return within_profile(run, entry.max_batch), f"{entry.name} by {entry.builder} on {engine.device_name()}"


def within_profile(run: Runner, largest: int) -> Runner:
    """Return a runner for any number of samples from one for batches of up to `largest`."""
    from trainer.export.arrays import join_batches

    def run_parts(inputs: Mapping[str, Array]) -> Arrays:
        samples = len(next(iter(inputs.values())))
        starts = range(0, samples, largest)
        return join_batches(
            run({name: array[start : start + largest] for name, array in inputs.items()}) for start in starts
        )

    return run_parts


if __name__ == "__main__":
    # End silently when the reader closes the pipe (| head).
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    run_process(main)
