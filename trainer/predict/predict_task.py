"""What `shardline predict` runs: answers by an export, whose own files are checked first.

    python -m trainer.predict.predict_task --folder URI [OPTION...] SAMPLE...

Options are those of the export's own predict.py (trainer/predict/serving.py). What is asked and answered is the task's
(trainer/export/bundle/bundles.py). With --url a running Triton answers. On a machine with a GPU that the export has an
engine for, and the package that built it, the engine answers; else the graph that ships, by ONNX Runtime on the CPU.
What answered is said on stderr. The export's predict.py is not executed. Exit codes as in contracts.errors; a sample
that cannot be used ends it with 2 after all others were answered.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import EngineEntry, ExportManifest
from contracts.errors import EXIT_USER_ERROR, CheckFailed, ConfigError, ErrorDocument, StorageError
from contracts.process import end_with_parent, threads_per_rank
from trainer.export.bundle.bundles import bundle_of
from trainer.export.targets import version_of
from trainer.predict.checked_folder import CheckedFolder
from trainer.predict.runtimes import BadFolder, BadInput, open_graph, open_server
from trainer.predict.serving import add_options, check_options, print_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer.export.gates.arrays import Array, Arrays
    from trainer.export.gates.parity import Runner
    from trainer.predict.serving import Kind, Model, Take


def main(arguments: list[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    end_with_parent()
    options = _parser().parse_args(arguments)
    try:
        with CheckedFolder(options.folder) as folder:
            return bundle_of(folder.document.task).predict(folder, options)
    except BrokenPipeError:
        # Whoever reads the answers has seen enough (| head): nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USER_ERROR
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        document = ErrorDocument.of(error)
        print(f"error: {document.message}", file=sys.stderr)
        return document.exit_code


def open_engine(folder: CheckedFolder) -> tuple[Runner | None, str]:
    """Return what runs the engine for this machine's GPU, for any batch, and its description; else None, and why."""
    entry, reason = find_engine(folder.document)
    if entry is None:
        return None, reason
    # Only here: it asks for a GPU.
    from trainer.export.engines import engine_open

    try:
        engine = engine_open.open_engine(folder.take(entry.name), entry, folder.document.signature)
    except (CheckFailed, ConfigError, RuntimeError) as error:  # RuntimeError: a torch without CUDA
        return None, str(error).partition("\n")[0]
    return within_profile(engine, entry), f"{entry.name} by {entry.builder} on the GPU ({entry.target})"


def answer_samples(
    folder: CheckedFolder, options: argparse.Namespace, kind: Kind, open_files: Callable[[Take], Model]
) -> int:
    """Print the answers to what options name; return the exit code: 2 where a sample could not be used.

    Args:
        folder: Of the export.
        options: Of the command.
        kind: Of the task's samples.
        open_files: Of the task's predict.py: reads what lies beside the graph.

    Raises:
        DataError: The export is damaged.
    """
    check_options(_parser(), options, kind)
    ships = folder.document.graph().name
    try:
        model = open_files(folder.take)
        if model.graph.path != ships:
            raise folder.damaged(f"its files are for {model.graph.path}, and {ships} ships")
        with tempfile.TemporaryDirectory(prefix="shardline-tables-") as work:
            files = [name for name in (options.lines, options.json_lines, options.manifest) if name]
            options.copies = {name: _copy(name, Path(work, str(at))) for at, name in enumerate(files) if "://" in name}
            run, ran = _open_runner(folder, model, options.url)
            print(f"predict: {ran}", file=sys.stderr, flush=True)
            return print_answers(kind, model, run, options)
    except BadFolder as error:
        raise folder.damaged(str(error).partition("\n")[0]) from None
    except BadInput as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


def _open_runner(folder: CheckedFolder, model: Model, url: str | None) -> tuple[Runner, str]:
    """Return what answers, and its description."""
    if url is not None:
        return open_server(url, model.graph), f"the server at {url}"
    engine, reason = open_engine(folder)
    if engine is not None:
        return engine, reason
    path, threads = folder.take(model.graph.path), threads_per_rank(1)
    if folder.document.served is not None:
        # The settings that it is served with lie beside it.
        folder.take(folder.document.served.config)
    version = version_of("onnxruntime")
    words = f"{path.name} by onnxruntime {version} on the CPU, {threads} threads ({reason})"
    return open_graph(path, model.graph, threads), words


def _copy(uri: str, folder: Path) -> str:
    """Copy a file from a bucket into a folder under its own name, and return its path.

    Raises:
        BadInput: It cannot be read.
    """
    folder.mkdir()
    copy = folder / uri.rpartition("/")[2]
    try:
        copy.write_bytes(storage.read_bytes(storage.normalise(uri)))
    except (StorageError, OSError) as error:
        reason = error.given if isinstance(error, StorageError) else error.strerror or "it is not there"
        raise BadInput(f"{uri} cannot be read: {reason}", allowed="a file of samples", todo="correct it") from None
    return str(copy)


def find_engine(document: ExportManifest) -> tuple[EngineEntry | None, str]:
    """Return the engine for this machine's GPU, or None and the reason."""
    from trainer.export.targets import gpu_target

    gpu = gpu_target()
    if gpu is None:
        return None, "no GPU"
    entry = next((entry for entry in document.engines if entry.target == gpu), None)
    if entry is None:
        return None, f"no engine for {gpu}"
    return entry, ""


def within_profile(run: Runner, entry: EngineEntry) -> Runner:
    """Return a runner for any batch from 1 to the export's largest: an engine takes those of its profile only."""
    from trainer.export.gates.arrays import join_batches, pad_batch

    def run_parts(inputs: Mapping[str, Array]) -> Arrays:
        samples, parts = len(next(iter(inputs.values()))), []
        for start in range(0, samples, entry.max_batch):
            part = {name: array[start : start + entry.max_batch] for name, array in inputs.items()}
            number = min(entry.max_batch, samples - start)
            found = run(pad_batch(part, entry.min_batch))
            parts.append({name: array[:number] for name, array in found.items()})
        return join_batches(parts)

    return run_parts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="predict", allow_abbrev=False)
    parser.add_argument("--folder", required=True, type=storage.normalise)
    add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
