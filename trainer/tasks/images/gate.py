"""The gate `bundle` of a task of images: the shipped predict.py on the source's own files, as a user would run it.

Here: `ask_about_split`, which asks the program about every file of the test split and counts what all tasks count, and
`conclude`, which makes the gate. Whatever is wrong with pixels or names on that way shows there; parity with torch, on
tensors, sees none of it. It runs code of the folder that it is given: only a folder whose checksums agree with its
manifest is for it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contracts.artifacts import ShardManifest
from contracts.artifacts.export import Figure, Gate
from trainer.export.bundle.bundles import GATE_NAME, PREDICT_NAME
from trainer.export.bundle.shipped import Shipped, ShippedFailed, ShippedProgram, name_versions
from trainer.export.gates.samples import SPLIT, Places, each_sample

if TYPE_CHECKING:
    from trainer.export.gates.arrays import StoredArrays

# Images of which files lie on the disk at a time, and their bytes; twice as many, since the next are written meanwhile.
CHUNK_IMAGES = 256
_CHUNK_BYTES = 1 << 26
# Two sums over the same probabilities, in float32 and by other kernels, were seen 1e-7 apart; a mean that is off by
# 0.05 of the range moves the average probability by more than a thousandth.
MAX_SCORE_DIFFERENCE = 1e-4

# Images that the program runs by its own ONNX Runtime where others are answered with what the graph gave before.
OWN_IMAGES = 32

# That the program needs.
_PACKAGES = ("onnxruntime", "numpy", "Pillow")

Predictions = list[tuple[str, float]]
"""Labels with their scores, the highest first."""
Known = tuple["StoredArrays", "StoredArrays"]
"""What the fp32 graph was given, the trainer's own inputs, and what it gave."""
Judge = Callable[[Any, Predictions | None], None]
"""Takes the label of an image, as the field has it, and what the program said of it; None: nothing."""


@dataclass(frozen=True)
class _Asked:
    """One image that the program is asked about."""

    label: Any
    coloured: bool
    changed: bool
    """Whether sharding changed it, and the program gets the source's file."""


@dataclass
class Findings:
    """What came back."""

    images: int = 0
    coloured: int = 0
    changed: int = 0
    """Images that sharding changed, asked about by the source's own files."""
    unanswered: int = 0
    first_error: str = ""
    failure: str = ""
    """Why the program came to no end."""
    predicted: set[str] = field(default_factory=set)
    predictions: int = 0
    scores: float = 0.0
    own: int | None = None
    """Images that the program ran by its own ONNX Runtime; None: all."""
    otherwise: int = 0
    """Of these, such that the graph answers otherwise."""
    others: int = 0
    """Images of which the program makes other inputs than the trainer, to the bit."""

    @property
    def mean_score(self) -> float | None:
        """Average score of all predictions; None: there was none."""
        return self.scores / self.predictions if self.predictions else None

    @staticmethod
    def read(answer: Mapping[str, Any]) -> Predictions | None:
        """Return the predictions of an answer; None: it is an error."""
        return None if "error" in answer else [(one["label"], one["score"]) for one in answer["predictions"]]

    def add(self, asked: _Asked, answer: Mapping[str, Any]) -> Predictions | None:
        """Count the answer to one image, and return its predictions; None: it is an error."""
        self.images += 1
        self.coloured += asked.coloured
        self.changed += asked.changed
        found = self.read(answer)
        if found is None:
            self.unanswered += 1
            self.first_error = self.first_error or str(answer["error"])
            return None
        self.predicted.update(label for label, _ in found)
        self.predictions += len(found)
        self.scores += sum(score for _, score in found)
        return found

    def reasons(self) -> Iterator[str]:
        """Yield what is wrong whatever was answered."""
        if self.failure:
            yield self.failure
        if self.unanswered:
            yield f"{self.unanswered} images got no answer, the first: {self.first_error}"
        if self.otherwise:
            yield f"its own ONNX Runtime answers {self.otherwise} of {self.own} images otherwise than the graph did"

    def figures(self) -> dict[str, Figure]:
        """Return what was counted."""
        return {
            "images": self.images,
            "coloured_images": self.coloured,
            "changed_images": self.changed,
            "classes_predicted": len(self.predicted),
            "unanswered": self.unanswered,
            "mean_score": self.mean_score,
            **({} if self.own is None else {"own_runtime": self.own, "other_inputs": self.others}),
        }


def ask_about_split(shipped: Shipped, *, top: int | None, judge: Judge, known: Known | None = None) -> Findings:
    """Ask the shipped program about files of the test split.

    One process answers for all images; files of a few hundred are on the disk at a time. Where the graph has run on the
    trainer's own inputs already, the program runs `OWN_IMAGES` by its own ONNX Runtime, and of all images its inputs
    are held against the trainer's: equal ones are answered with what the graph gave, others by the graph.

    Args:
        shipped: The export, and the images.
        top: Most labels of an image; None: what the program says by itself.
        judge: Takes each image with its answer, in the order of the split.
        known: What the graph gave before.

    Raises:
        DataError: A shard is damaged.
    """
    found, options = Findings(), ["--json-lines=-", "--format=json", *([f"--top={top}"] if top else [])]
    places = shipped.places
    chosen: Sequence[int] = range(shipped.shards.splits[SPLIT].samples) if places is None else places

    def answers(places: Places, *more: str) -> Iterator[tuple[_Asked, dict[str, Any]]]:
        asked = deque[_Asked]()
        with tempfile.TemporaryDirectory(prefix="shardline-bundle-") as name:
            chunks = _write_images(Path(name), replace(shipped, places=places), asked)
            program = ShippedProgram(shipped, [*options, *more], work=Path(name))
            with contextlib.closing(chunks), program:
                for answer in _ask(program, chunks, Path(name)):
                    yield asked.popleft(), answer

    def count(answered: Iterator[tuple[_Asked, dict[str, Any]]]) -> Iterator[Predictions | None]:
        for image, answer in answered:
            predictions = found.add(image, answer)
            judge(image.label, predictions)
            yield predictions

    try:
        if known is None or len(chosen) <= 2 * OWN_IMAGES:
            deque(count(answers(places)), maxlen=0)
            return found
        few = {place * len(chosen) // OWN_IMAGES for place in range(OWN_IMAGES)}
        own = [found.read(answer) for _, answer in answers([chosen[place] for place in sorted(few)])]
        # Here: it imports numpy.
        from trainer.export.bundle.known_server import KnownServer

        with KnownServer(shipped.folder / shipped.model_name, *known, threads=shipped.threads) as server:
            said = list(count(answers(places, f"--url={server.url}")))
        found.own, found.others = len(own), server.others
        found.otherwise = sum(map(_differ, own, (said[place] for place in sorted(few))))
    except ShippedFailed as failure:
        found.failure = str(failure)
    return found


def _differ(one: Predictions | None, other: Predictions | None) -> bool:
    """Whether two answers to an image have other scores than rounding gives."""
    if one is None or other is None:
        return one is not other
    # Which labels are said is judged of all images; one whose score is near a threshold may be said by one alone.
    return any(not abs(a[1] - b[1]) <= MAX_SCORE_DIFFERENCE for a, b in zip(one, other, strict=False))


def _ask(program: ShippedProgram, chunks: Iterable[Sequence[str]], work: Path) -> Iterator[dict[str, Any]]:
    """Yield what the program says of each file, in order: `file` and `predictions`, or `error`.

    The files of a chunk are asked for before the answers to the one before are read, and are deleted when they have
    been answered: two chunks lie on the disk at a time.
    """
    under_way: deque[Sequence[str]] = deque()

    def take(names: Sequence[str]) -> Iterator[dict[str, Any]]:
        for name, answer in zip(names, program.answers(names), strict=True):
            if not _is_answer(answer, name):
                raise program.misunderstood(name, answer)
            yield answer
            (work / name).unlink()

    for chunk in chunks:
        program.ask(chunk)
        under_way.append(chunk)
        if len(under_way) > 1:
            yield from take(under_way.popleft())
    while under_way:
        yield from take(under_way.popleft())
    program.finish()


def _is_answer(answer: Mapping[str, Any], name: str) -> bool:
    try:
        predictions = [(one["label"], one["score"]) for one in answer.get("predictions", ())]
        return answer["file"] == name and (
            "error" in answer or all(isinstance(label, str) and score >= 0 for label, score in predictions)
        )
    except (TypeError, LookupError):
        return False


def conclude(
    found: Findings,
    reasons: Sequence[str],
    *,
    figures: Mapping[str, Figure],
    limits: Mapping[str, float],
    undecided: str,
    precision: str,
) -> Gate:
    """Return the gate.

    Args:
        found: What the program said.
        reasons: What is wrong besides.
        figures: What was counted besides.
        limits: Of figures.
        undecided: Why the answers say nothing about pixels; empty: they do.
        precision: Of the graph.
    """
    wrong = [*found.reasons(), *reasons]
    status: Literal["passed", "failed", "not decidable"] = "failed" if wrong else "passed"
    if not wrong and undecided:
        status = "not decidable"
        wrong.append(undecided)
    elif found.images and not found.coloured:
        wrong.append("no test image is coloured: channels in another order may not be seen")
    return Gate(
        name=GATE_NAME,
        precision=precision,
        status=status,
        ran=f"the shipped {PREDICT_NAME} with {name_versions(_PACKAGES)}, on image files"
        + (f", {found.changed} of them as they were before sharding changed them" if found.changed else ""),
        figures={**found.figures(), **figures},
        limits=dict(limits),
        reason="; ".join(wrong),
    )


def not_decidable(reason: str, *, precision: str) -> Gate:
    """Return the gate of a program that was not run."""
    return Gate(name=GATE_NAME, precision=precision, status="not decidable", ran=f"not run: {reason}", reason=reason)


def _write_images(work: Path, shipped: Shipped, asked: deque[_Asked]) -> Generator[list[str]]:
    """Write the files of the test split under names that tell nothing, and yield these a chunk at a time.

    What is to be known of each file is appended to `asked`.
    """
    # Here: it brings the cache of a bucket with it.
    from trainer.data.reader import ShardReader

    reader = ShardReader(shipped.shards_uri, shipped.shards, SPLIT, shipped.data, scattered=shipped.places is not None)
    source = SourceFiles(shipped) if is_changed(shipped.shards) else None
    places = range(len(reader)) if shipped.places is None else shipped.places
    names: list[str] = []
    num_bytes = 0
    for number, (place, sample) in enumerate(
        zip(places, each_sample(reader, shipped.places, CHUNK_IMAGES), strict=True)
    ):
        stored = sample["image"]
        content = stored if source is None else source.read(place, stored)
        names.append(f"{number:09d}")
        (work / names[-1]).write_bytes(content)
        asked.append(_Asked(sample["label"], _is_coloured(stored), content != stored))
        num_bytes += len(content)
        if len(names) == CHUNK_IMAGES or num_bytes > _CHUNK_BYTES:
            yield names
            names, num_bytes = [], 0
    if names:
        yield names


def is_changed(shards: ShardManifest) -> bool:
    """Whether sharding changed any image."""
    return shards.prepared is not None and any(shards.prepared.changed.values())


class SourceFiles:
    """The source's own files of the samples that sharding changed.

    Args:
        shipped: The shards, which say where their source lies.
    """

    def __init__(self, shipped: Shipped) -> None:
        from PIL import ImageColor

        from records.convert import Changes
        from records.index import SampleIndex
        from records.source import read_source

        assert shipped.shards.prepared is not None
        self._shards_uri, self._shards, self._prepared = shipped.shards_uri, shipped.shards, shipped.shards.prepared
        self._index, self._source = SampleIndex(self._shards, self._shards_uri), read_source(self._shards_uri)
        own = self._prepared
        self._background = None if own.background is None else ImageColor.getrgb(own.background)[:3]
        self._changes = Changes(
            **dict.fromkeys(own.convert, True), shorter_side=own.resize, jpeg_quality=own.jpeg_quality
        )

    def read(self, place: int, stored: bytes) -> bytes:
        """Return the source's file of a sample of the test split, or `stored`.

        `stored` where the file is gone, or has changed since: what sharding makes of it is not what the shard has.
        """
        from records.convert import change
        from records.decode import UndecodableImage, decode

        content = self._find(place)
        if content is None or content == stored:
            return stored
        try:
            image = decode(content, background=self._background, max_pixels=None)
        except UndecodableImage:
            return stored
        made, _ = change(content, image, self._changes)
        # Not every reader takes a file that sharding has repaired.
        return content if made == stored and image.repaired is None else stored

    def _find(self, place: int) -> bytes | None:
        """Return the file at the sample's path in the source; None: it cannot be read."""
        from records.fields import path_in
        from records.index import read_samples
        from records.source import read_source_file

        if self._source is None:
            return None
        first = self._shards.splits[SPLIT].first
        (stored,) = read_samples(self._index, self._shards_uri, [first + place])
        path = path_in(stored, self._shards.format)
        return None if path is None else read_source_file(self._source, path)


def _is_coloured(content: bytes) -> bool:
    """Whether an image has a pixel that is not grey: only there another order of channels shows.

    A JPEG is looked at by averages of 8 x 8 pixels, at a part of the cost.
    """
    from records.decode import UndecodableImage, decode_rgb, reducible_size

    try:
        pixels = decode_rgb(content, reduction=8 if reducible_size(content) else 1, max_pixels=None)
    except UndecodableImage:
        # Sharded without a look at it; the program will say so too.
        return False
    return bool((pixels != pixels[..., :1]).any())
