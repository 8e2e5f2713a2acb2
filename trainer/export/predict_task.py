"""What `shardline predict` runs: labels of image files by an export, whose files are checked first.

    python -m trainer.export.predict_task --folder URI [--top K] [--json] IMAGE...

On a machine with a GPU that the export has an engine for, and the package that built it, the engine answers; else the
graph that ships, by ONNX Runtime on the CPU. What answered is said on stderr. Its predict.py is not executed:
pixels, labels and ONNX Runtime go through this package's own predict.py, of which the folder holds a copy. Exit codes
as in contracts.errors; a file that is no usable image ends it with 2 after all others were answered.
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
from contracts.errors import EXIT_OK, EXIT_USER_ERROR, CheckFailed, ConfigError, ErrorDocument, StorageError
from contracts.process import end_with_parent, threads_per_rank
from trainer.export.checked_folder import CheckedFolder

# Of files in a folder; a file that is named is tried whatever it is called.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainer.export.predict import Classifier, Preprocessing, Runner


def main(arguments: list[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    end_with_parent()
    options = _parse(arguments)
    try:
        with CheckedFolder(options.folder) as folder:
            return _predict(folder, options)
    except BrokenPipeError:
        # Whoever reads the answers has seen enough (| head): nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USER_ERROR
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        document = ErrorDocument.of(error)
        print(f"error: {document.message}", file=sys.stderr)
        return document.exit_code


def _predict(folder: CheckedFolder, options: argparse.Namespace) -> int:
    # Here: it imports numpy and Pillow, which a wrong folder need not wait for.
    from trainer.export import predict

    try:
        preprocessing = predict.Preprocessing.read(folder.take(predict.PREPROCESS_NAME))
        ships = folder.document.graph().name
        if preprocessing.model != ships:
            raise folder.damaged(f"{predict.PREPROCESS_NAME} is for {preprocessing.model}, and {ships} ships")
        labels = predict.read_labels(folder.take(preprocessing.labels))
        runner, ran = _open_runner(folder, preprocessing, len(labels))
        print(f"predict: {ran}", file=sys.stderr, flush=True)
        return _print_answers(predict.Classifier(preprocessing, labels, runner), options)
    except predict.BadFolder as error:
        raise folder.damaged(str(error).partition("\n")[0]) from None


def _open_runner(folder: CheckedFolder, preprocessing: Preprocessing, num_classes: int) -> tuple[Runner, str]:
    """Return what answers, and its description."""
    from trainer.export import predict

    entry, reason = find_engine(folder.document)
    if entry is not None:
        # Only here: it asks for a GPU.
        from trainer.export.engine_run import open_engine

        try:
            run = open_engine(folder.take(entry.name), entry, num_classes=num_classes)
            return within_profile(run, entry), f"{entry.name} by {entry.builder} on the GPU ({entry.target})"
        except (CheckFailed, ConfigError, RuntimeError) as error:  # RuntimeError: a torch without CUDA
            reason = str(error).partition("\n")[0]
    path, threads = folder.take(preprocessing.model), threads_per_rank(1)
    run = predict.open_model(path, preprocessing, threads)
    version = importlib.metadata.version("onnxruntime")
    return run, f"{path.name} by onnxruntime {version} on the CPU, {threads} threads ({reason})"


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
    import numpy as np

    def run_parts(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        parts = []
        for start in range(0, len(images), entry.max_batch):
            part = images[start : start + entry.max_batch]
            missing = max(0, entry.min_batch - len(part))
            # The last image again: an answer to it is there already.
            filled = np.concatenate([part, *[part[-1:]] * missing]) if missing else part
            parts.append(run(filled)[: len(part)])
        return np.concatenate(parts)

    return run_parts


def _print_answers(classifier: Classifier, options: argparse.Namespace) -> int:
    failed = 0
    images = [file for image in options.images for file in _files_of(image)]
    for answer in classifier.classify(images, top=options.top, read=_read):
        if options.json:
            print(answer.to_json(), flush=True)
        elif not answer.error:
            print(answer.to_text(), flush=True)
        if answer.error:
            failed += 1
            print(f"error: {answer.path}: {answer.error}", file=sys.stderr, flush=True)
    if not failed:
        return EXIT_OK
    print(
        f"error: {failed} of {len(images)} files could not be used\n"
        "  allowed: image files in jpeg, png, webp, gif, bmp, tiff or ppm\n"
        "  to do: correct the paths, or leave these files out",
        file=sys.stderr,
    )
    return EXIT_USER_ERROR


def _files_of(image: str) -> list[str]:
    """Return an image itself; of a folder (of a bucket: a URI that ends with /) the images in and below it, by name."""
    if "://" in image:
        if not image.endswith("/"):
            return [image]
        uri = storage.normalise(image)
        found = [storage.join(uri, *entry.name.split("/")) for entry in storage.list_objects(uri)]
    elif Path(image).is_dir():
        found = [str(path) for path in Path(image).rglob("*") if path.is_file()]
    else:
        return [image]
    images = sorted(name for name in found if name.lower().endswith(IMAGE_SUFFIXES))
    if not images:
        raise ConfigError(
            f"folder {image} holds no images",
            allowed=f"files that end with {', '.join(IMAGE_SUFFIXES)}",
            todo="correct the path, or name the files themselves",
        )
    return images


def _read(image: str) -> bytes:
    """Return the content of an image at a path or URI; OSError where it cannot be read."""
    if "://" not in image:
        return Path(image).read_bytes()
    try:
        return storage.read_bytes(storage.normalise(image))
    except StorageError as error:
        raise OSError(error.given) from None


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="predict", allow_abbrev=False)
    parser.add_argument("--folder", required=True, type=storage.normalise)
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("images", nargs="+")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
