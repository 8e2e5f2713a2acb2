"""Labels of image files by an export: `shardline predict` for tasks of images.

Pixels, labels and ONNX Runtime go through predict.py beside this file, of which the export holds a copy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from contracts import storage
from contracts.errors import EXIT_OK, EXIT_USER_ERROR, ConfigError, StorageError
from contracts.process import threads_per_rank
from trainer.export.checked_folder import CheckedFolder
from trainer.export.predict_task import describe_graph, open_engine
from trainer.tasks.images import predict
from trainer.tasks.images.predict import Classifier, Preprocessing, Runner

# Of files in a folder; a file that is named is tried whatever it is called.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")


def print_labels(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print the labels of images; return the exit code: 2 where one could not be used.

    Args:
        folder: Of the export.
        options: Of the command (trainer/export/predict_task.py).

    Raises:
        DataError: The export is damaged.
    """
    try:
        preprocessing = predict.Preprocessing.read(folder.take(predict.PREPROCESS_NAME))
        ships = folder.document.graph().name
        if preprocessing.model != ships:
            raise folder.damaged(f"{predict.PREPROCESS_NAME} is for {preprocessing.model}, and {ships} ships")
        labels, thresholds = predict.read_labels(folder.take(preprocessing.labels), preprocessing)
        runner, ran = _open_runner(folder, preprocessing)
        print(f"predict: {ran}", file=sys.stderr, flush=True)
        return _print_answers(predict.Classifier(preprocessing, labels, runner, thresholds), options)
    except predict.BadFolder as error:
        raise folder.damaged(str(error).partition("\n")[0]) from None


def _open_runner(folder: CheckedFolder, preprocessing: Preprocessing) -> tuple[Runner, str]:
    """Return what answers, and its description."""
    engine, said = open_engine(folder)
    if engine is not None:
        return lambda images: engine({preprocessing.input: images})[preprocessing.output], said
    path, threads = folder.take(preprocessing.model), threads_per_rank(1)
    return predict.open_model(path, preprocessing, threads), describe_graph(path, threads, said)


def _print_answers(classifier: Classifier, options: argparse.Namespace) -> int:
    if options.lines is not None:
        raise ConfigError(
            f"--lines {options.lines}, and the export is of images",
            allowed="image files, or folders of them",
            todo="name the images themselves",
        )
    failed = 0
    images = [file for image in options.files for file in _files_of(image)]
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
