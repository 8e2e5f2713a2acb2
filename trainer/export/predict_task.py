"""What `shardline predict` runs: answers by an export, whose own files are checked first.

    python -m trainer.export.predict_task --folder URI [--top K] [--json] [--lines FILE] SAMPLE...

What is asked and answered is the task's (trainer/export/bundles.py). On a machine with a GPU that the export has an
engine for, and the package that built it, the engine answers; else the graph that ships, by ONNX Runtime on the CPU.
What answered is said on stderr. The export's predict.py is not executed. Exit codes as in contracts.errors; a sample
that cannot be used ends it with 2 after all others were answered.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import EngineEntry, ExportManifest
from contracts.errors import EXIT_USER_ERROR, CheckFailed, ConfigError, ErrorDocument
from contracts.process import end_with_parent
from trainer.export.bundles import bundle_of
from trainer.export.checked_folder import CheckedFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.export.arrays import Array, Arrays
    from trainer.export.parity import Runner


def main(arguments: list[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    end_with_parent()
    options = _parse(arguments)
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
    from trainer.export import engine_run

    try:
        engine = engine_run.open_engine(folder.take(entry.name), entry, folder.document.model_signature)
    except (CheckFailed, ConfigError, RuntimeError) as error:  # RuntimeError: a torch without CUDA
        return None, str(error).partition("\n")[0]
    return within_profile(engine, entry), f"{entry.name} by {entry.builder} on the GPU ({entry.target})"


def describe_graph(path: Path, threads: int, reason: str) -> str:
    """Return what is said of a graph that answers.

    Args:
        path: The graph.
        threads: Of ONNX Runtime.
        reason: Why no engine does.
    """
    version = importlib.metadata.version("onnxruntime")
    return f"{path.name} by onnxruntime {version} on the CPU, {threads} threads ({reason})"


def refuse_lines(options: argparse.Namespace, kind: str) -> None:
    """Refuse --lines where samples are no texts.

    Args:
        options: Of the command.
        kind: What samples are.

    Raises:
        ConfigError: It is there.
    """
    if options.lines is not None:
        raise ConfigError(
            f"--lines {options.lines}, and the export is of {kind}",
            allowed="--lines for an export of text_classification",
            todo=f"name files of {kind}",
        )


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
    from trainer.export.arrays import join_batches, pad_batch

    def run_parts(inputs: Mapping[str, Array]) -> Arrays:
        samples, parts = len(next(iter(inputs.values()))), []
        for start in range(0, samples, entry.max_batch):
            part = {name: array[start : start + entry.max_batch] for name, array in inputs.items()}
            number = min(entry.max_batch, samples - start)
            found = run(pad_batch(part, entry.min_batch))
            parts.append({name: array[:number] for name, array in found.items()})
        return join_batches(parts)

    return run_parts


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="predict", allow_abbrev=False)
    parser.add_argument("--folder", required=True, type=storage.normalise)
    parser.add_argument("--top", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lines")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args(arguments)
    if not options.files and options.lines is None:
        parser.error("nothing was given to predict")
    return options


if __name__ == "__main__":
    sys.exit(main())
