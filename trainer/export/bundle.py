"""What a user needs beside a graph, and the gate that tries it: labels.json, preprocess.json and predict.py.

Here: `write_bundle`, and `check_bundle`, which runs the shipped predict.py as a user would, on the source's own files,
and counts right answers. Whatever is wrong with pixels or names on that way shows there; parity with torch, on tensors,
sees none of it. predict.py is copied from this package byte for byte and knows nothing of it. The gate runs code of the
folder that it is given: only a folder whose checksums agree with its manifest is for it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import tempfile
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from contracts.artifacts import EVALUATION_NAME, CheckpointManifest, ShardManifest
from contracts.artifacts.export import Figure, Gate
from contracts.config import DataSection
from trainer.export.onnx_graph import INPUT_NAME, OUTPUT_NAME
from trainer.export.predict import LABELS_NAME, PREPROCESS_NAME
from trainer.export.shipped import PREDICT_NAME, ShippedFailed, ask_shipped

GATE_NAME = "bundle"

# Images of which files lie on the disk at a time, and their bytes; twice as many, since the next are written meanwhile.
_CHUNK_IMAGES = 256
_CHUNK_BYTES = 1 << 26
# Two sums over the same probabilities, in float32 and by other kernels, were seen 1e-7 apart; a mean that is off by
# 0.05 of the range moves the average probability by more than a thousandth.
MAX_SCORE_DIFFERENCE = 1e-4
# Images whose path in the source is looked at: of a bucket each one is a request.
_PATHS_LOOKED_AT = 32
# As classes are named whose name is no text (sharding/limits.py).
_ENCODED_NAME = "percent-encoded:"


def write_bundle(folder: Path, checkpoint: CheckpointManifest, *, model_name: str, max_batch: int) -> list[str]:
    """Write labels.json, preprocess.json and predict.py into a folder; return their names.

    Args:
        folder: Where the graphs lie.
        checkpoint: Its classes and its evaluation transform.
        model_name: File name of the graph that ships.
        max_batch: Most images at a time.
    """
    preprocessing = {
        "format_version": 1,
        "model": model_name,
        "labels": LABELS_NAME,
        "input": INPUT_NAME,
        "output": OUTPUT_NAME,
        "max_batch": max_batch,
        "color": "RGB",
        "crop": "center",
        "image_size": checkpoint.data["image_size"],
        "filter": "bilinear",
        "range": [0, 1],
        "mean": list(checkpoint.data["mean"]),
        "std": list(checkpoint.data["std"]),
        "layout": "NCHW",
        "dtype": "float32",
    }
    (folder / LABELS_NAME).write_bytes(_as_json(checkpoint.classes))
    (folder / PREPROCESS_NAME).write_bytes(_as_json(preprocessing))
    (folder / PREDICT_NAME).write_bytes(Path(__file__).with_name(PREDICT_NAME).read_bytes())
    return [LABELS_NAME, PREPROCESS_NAME, PREDICT_NAME]


def check_bundle(
    folder: Path,
    shards_uri: str,
    shards: ShardManifest,
    *,
    model_name: str,
    expected_right: int | None,
    data: DataSection,
    threads: int,
    transformed_right: int | None = None,
    expected_score: float | None = None,
    precision: str = "fp32",
) -> Gate:
    """Run the shipped predict.py on the files of the test split, and count its right answers.

    An answer is right when the name that it gives is the name of the sample's class in the shards' manifest, which has
    it from the source. One process answers for all images; files of a few hundred are on the disk at a time.

    Args:
        folder: The export's folder on this machine.
        shards_uri: Folder of the shards.
        shards: Their manifest.
        model_name: File name of the graph to run; the fp32 one, since only it must agree to the image.
        expected_right: Right answers in the evaluation.json of the checkpoint; None: there is none, or what computed it
            (TF32, a GPU's bf16) is no fp32.
        data: How shards in a bucket are read.
        threads: Intra-op threads of ONNX Runtime.
        transformed_right: Right answers of the same graph on the trainer's own transform of the same images.
        expected_score: Average of the largest probability of each image, on the trainer's transform, or as an earlier
            gate found it (`mean_score`): it sees what moves no answer.
        precision: Of the graph.

    Returns:
        The gate. Figures: images, right, coloured_images, classes_predicted, mean_score; unanswered, if any; what was
        expected, and the differences that limits are for.

    Raises:
        DataError: A shard is damaged.
    """
    samples = shards.splits["test"].samples
    expected: dict[str, Figure] = {"evaluation_right": expected_right, "transformed_right": transformed_right}
    expected = {name: count for name, count in expected.items() if count is not None}
    if not expected or samples == 0:
        reason = f"no {EVALUATION_NAME} to compare with" if samples else "the test split is empty"
        return Gate(
            name=GATE_NAME, precision=precision, status="not decidable", ran=f"not run: {reason}", reason=reason
        )
    found = _run(folder, shards_uri, shards, data, model_name=model_name, threads=threads)
    figures = found.figures() | expected | _look_at_paths(shards_uri, shards)
    reasons, limits = list(found.reasons()), {"right_difference": 0.0}
    difference = max(abs(found.right - int(count or 0)) for count in expected.values())
    figures["right_difference"] = difference
    # Of a program that failed, its own words say more than what it did not count.
    if difference and not found.failure:
        told = ", ".join(f"{name} is {count}" for name, count in expected.items())
        reasons.append(f"{found.right} of {found.images} answers are right, {told}")
    if expected_score is not None:
        apart = None if found.mean_score is None else abs(found.mean_score - expected_score)
        figures |= {"expected_score": expected_score, "score_difference": apart}
        limits["score_difference"] = MAX_SCORE_DIFFERENCE
        if (apart is None or apart > MAX_SCORE_DIFFERENCE) and not found.failure:
            reasons.append(f"the average probability is {found.mean_score}, expected {expected_score}")
    status: Literal["passed", "failed", "not decidable"] = "failed" if reasons else "passed"
    if not reasons and len(found.predicted) < 2:
        status = "not decidable"
        reasons.append("every answer names one class: it says nothing about pixels")
    elif found.images and not found.coloured:
        reasons.append("no test image is coloured: channels in another order may not be seen")
    return Gate(
        name=GATE_NAME,
        precision=precision,
        status=status,
        ran=f"the shipped {PREDICT_NAME} with {_versions()}, on the source's files",
        figures=figures,
        limits=limits,
        reason="; ".join(reasons),
    )


@dataclass(frozen=True)
class _Asked:
    """One image that the program is asked about."""

    truth: str
    coloured: bool


@dataclass
class _Findings:
    """What came back."""

    images: int = 0
    right: int = 0
    coloured: int = 0
    unanswered: int = 0
    first_error: str = ""
    failure: str = ""
    """Why the program came to no end."""
    predicted: set[str] = field(default_factory=set)
    scores: float = 0.0

    @property
    def mean_score(self) -> float | None:
        answered = self.images - self.unanswered
        return self.scores / answered if answered else None

    def add(self, asked: _Asked, answer: dict[str, Any]) -> None:
        self.images += 1
        self.coloured += asked.coloured
        if "error" in answer:
            self.unanswered += 1
            self.first_error = self.first_error or str(answer["error"])
            return
        best = answer["predictions"][0]
        self.predicted.add(best["label"])
        self.right += best["label"] == asked.truth
        self.scores += best["score"]

    def reasons(self) -> Iterator[str]:
        if self.failure:
            yield self.failure
        if self.unanswered:
            yield f"{self.unanswered} images got no answer, the first: {self.first_error}"

    def figures(self) -> dict[str, Figure]:
        return {
            "images": self.images,
            "right": self.right,
            "coloured_images": self.coloured,
            "classes_predicted": len(self.predicted),
            "unanswered": self.unanswered,
            "mean_score": self.mean_score,
        }


def _run(
    folder: Path, shards_uri: str, shards: ShardManifest, data: DataSection, *, model_name: str, threads: int
) -> _Findings:
    """Ask the shipped program about every file of the test split."""
    found, asked = _Findings(), deque[_Asked]()
    with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as work:
        chunks = _write_images(Path(work), shards_uri, shards, data, asked)
        try:
            with contextlib.closing(chunks):
                for answer in ask_shipped(folder, Path(work), chunks, model_name=model_name, threads=threads):
                    found.add(asked.popleft(), answer)
        except ShippedFailed as failure:
            found.failure = str(failure)
    return found


def _write_images(
    work: Path, shards_uri: str, shards: ShardManifest, data: DataSection, asked: deque[_Asked]
) -> Generator[list[str]]:
    """Write the files of the test split under names that tell nothing, and yield these a chunk at a time.

    What is to be known of each file is appended to `asked`.
    """
    # Here: it brings the cache of a bucket with it.
    from trainer.data.reader import ShardReader

    reader = ShardReader(shards_uri, shards, "test", data)
    names: list[str] = []
    num_bytes = 0
    with reader.read_ahead() as advance:
        for place in range(len(reader)):
            if place % _CHUNK_IMAGES == 0:
                reader.prepare(list(range(place, min(place + _CHUNK_IMAGES, len(reader)))))
                advance(place)
            sample = reader.sample(place)
            content, label = sample["image"], sample["label"]
            names.append(f"{place:09d}")
            (work / names[-1]).write_bytes(content)
            asked.append(_Asked(shards.classes[label], _is_coloured(content)))
            num_bytes += len(content)
            if len(names) == _CHUNK_IMAGES or num_bytes > _CHUNK_BYTES:
                yield names
                names, num_bytes = [], 0
    if names:
        yield names


def _is_coloured(content: bytes) -> bool:
    """Whether an image has a pixel that is not grey: only there another order of channels shows.

    A JPEG is looked at by averages of 8 x 8 pixels, at a part of the cost.
    """
    from records.decode import UndecodableImage, decode_rgb, reducible_size

    try:
        pixels = decode_rgb(content, reduction=8 if reducible_size(content) else 1)
    except UndecodableImage:
        # Sharded without a look at it; the program will say so too.
        return False
    return bool((pixels != pixels[..., :1]).any())


def _look_at_paths(shards_uri: str, shards: ShardManifest) -> dict[str, Figure]:
    """Say of some samples how many have their class's name as a folder of their path in the source.

    A figure, no condition: a source that is a manifest may call its files what it likes.
    """
    from records.description import read_path
    from records.samples import open_samples

    split, samples = shards.splits["test"], open_samples(shards, shards_uri)
    whole_format = shards.format if shards.whole_samples else None
    looked_at = named = 0
    for place in range(0, split.samples, -(-split.samples // _PATHS_LOOKED_AT)):
        record = samples[split.first + place]
        path = read_path(shards.shards[int(record["shard"])].uri(shards_uri), record, whole_format=whole_format)
        if path is not None:
            truth = shards.classes[int(record["label"])]
            folders = [unquote(part) for part in path.split("/")[:-1]]
            if truth.startswith(_ENCODED_NAME):
                truth = unquote(truth.removeprefix(_ENCODED_NAME))
            looked_at += 1
            named += truth in folders
    return {"source_paths": looked_at, "source_paths_with_class": named}


def _versions() -> str:
    named = {}
    for package in ("onnxruntime", "numpy", "Pillow"):
        try:
            named[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # onnxruntime-gpu and others bring the same module.
            named[package] = "of another distribution"
    return ", ".join(f"{name} {version}" for name, version in named.items())


def _as_json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
