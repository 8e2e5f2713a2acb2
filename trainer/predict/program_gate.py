"""The gate `program`: the shipped predict.py on source files, compared with the fp32 graph on the trainer's inputs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts import ExportManifest, Gate, ShardManifest
from contracts.artifacts.export import PROGRAM
from contracts.process import threads_per_rank
from records.source import read_source
from trainer.export.runtime import version_of
from trainer.export.samples import SPLIT, stratify
from trainer.predict.bundle import (
    BUNDLE_NAMES,
    LABELS_NAME,
    PROGRAM_NAME,
    ExportedFiles,
    change_as_sharded,
    kind_of,
    read_inputs,
    read_samples,
    write_program,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trainer.export.arrays import Batches

PROGRAM_SAMPLES = 64
"""Samples of the test split that the program runs."""
MAX_SCORE_DIFFERENCE = 1e-4
"""Probabilities in float32 differ by 1e-7 between kernels; an error of 0.05 of the range in the mean of pixels changes
them by more than 1e-3."""
_PACKAGES = {"images": ("onnxruntime", "numpy", "Pillow"), "texts": ("onnxruntime", "numpy", "tokenizers")}
_BATCH = 32
# Bytes of a text that can be an argument of the program.
_ARGUMENT_BYTES = 20_000
_TIME_LIMIT_S = 1800.0
_LAST_CHARACTERS = 2000


def judge_program(files: ExportedFiles, outputs: Batches) -> Gate:
    """Run the shipped program on source files, and compare it with torch on the trainer's inputs.

    It finds errors in pixels, tokens and names, which parity, on tensors, cannot. It runs code of the folder, so the
    checksums must have been verified. To be called in its own process.

    Args:
        files: An export of a built-in task.
        outputs: torch's, for the gates' samples, in their order.
    """
    from trainer.export.arrays import join_batches

    rows = _choose_rows(files)
    (logits,) = join_batches(outputs).values()
    return _try_program(files, rows, logits[rows])


def judge_program_again(files: ExportedFiles, document: ExportManifest, work: Path) -> Gate:
    """Run this package's program on the files of a finished export; no code of the export runs.

    Its answers are compared with the fp32 graph, and their mean score with that of the export's gate.
    """
    from trainer.export.arrays import join_batches
    from trainer.export.engine import open_graph

    folder = work / PROGRAM
    folder.mkdir()
    kind = kind_of(files.task)
    for name in (files.graph, *BUNDLE_NAMES[kind]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(files.folder / name)
    write_program(folder, kind)
    rows = _choose_rows(files)
    run = open_graph(files.folder / files.graph, threads=threads_per_rank(1))
    (logits,) = join_batches(run(inputs) for inputs in read_inputs(files, rows, _BATCH)).values()
    gate = _try_program(replace(files, folder=folder), rows, logits)
    recorded = next((gate.figures.get("mean_score") for gate in document.gates if gate.name == PROGRAM), None)
    actual = gate.figures["mean_score"]
    if gate.status != "passed" or not isinstance(recorded, float) or not isinstance(actual, float):
        return gate
    if abs(actual - recorded) <= MAX_SCORE_DIFFERENCE:
        return gate
    reason = f"the mean score is {actual:.6f}, and was {recorded:.6f} at export time"
    return gate.model_copy(update={"status": "failed", "reason": reason})


def _choose_rows(files: ExportedFiles) -> list[int]:
    """Return the rows of at most `PROGRAM_SAMPLES` of the gates' samples, the same share of each class."""
    from records.index import SampleIndex

    samples, split = files.samples, files.shards.splits[SPLIT]
    if samples <= PROGRAM_SAMPLES:
        return list(range(samples))
    labels = SampleIndex(files.shards, files.shards_uri).labels(split.first, split.samples)
    return stratify(labels[list(files.places)], PROGRAM_SAMPLES, seed=0)


def _try_program(files: ExportedFiles, rows: Sequence[int], logits: npt.NDArray[np.float32]) -> Gate:
    kind, changed = kind_of(files.task), 0
    with tempfile.TemporaryDirectory(prefix="shardline-program-") as name:
        samples = list(read_samples(files, rows))
        if kind == "images":
            prepared = files.shards.prepared
            is_changed = prepared is not None and any(prepared.changed.values())
            source = read_source(files.shards_uri) if is_changed else None
            arguments = []
            for number, (stored, path) in enumerate(samples):
                content = _source_file(files.shards, source, path, stored)
                changed += content != stored
                arguments.append(f"{number:02d}")
                Path(name, arguments[-1]).write_bytes(content)
        else:
            usable = [number for number, (text, _) in enumerate(samples) if _is_argument(text)]
            arguments, logits = [samples[number][0] for number in usable], logits[usable]
        answers, reason = _run_program(files, arguments, Path(name))
    other_labels, difference = _compare(files, answers, logits)
    if not reason and other_labels:
        reason = f"{other_labels} of {len(answers)} samples have other labels than the graph on the trainer's inputs"
    elif not reason and not difference <= MAX_SCORE_DIFFERENCE:
        reason = f"scores are up to {difference:.3g} from those of the graph on the trainer's inputs"
    undecided = "" if arguments else "no text of the proof can be an argument of the program"
    scores = [score for answer in answers for score in answer["scores"]]
    packages = ", ".join(f"{package} {version_of(package)}" for package in _PACKAGES[kind])
    return Gate(
        name=PROGRAM,
        precision="fp32",
        file=PROGRAM_NAME,
        status="not run" if undecided else "failed" if reason else "passed",
        ran=packages,
        figures={
            "samples": len(answers),
            "changed_by_sharding": changed,
            "other_labels": other_labels,
            "score_difference": difference,
            "mean_score": sum(scores) / len(scores) if scores else None,
        },
        limits={"other_labels": 0.0, "score_difference": MAX_SCORE_DIFFERENCE},
        reason=undecided or reason,
    )


def _is_argument(text: str) -> bool:
    from trainer.predict.program import find_file

    return "\0" not in text and len(text.encode()) <= _ARGUMENT_BYTES and find_file([text]) is None


def _run_program(files: ExportedFiles, arguments: Sequence[str], work: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the program's answers, and the reason why some are missing."""
    if not arguments:
        return [], ""
    program = str(files.folder.resolve() / PROGRAM_NAME)
    command = [sys.executable, "-I", program, "--output=json", f"--model={files.graph}", "--", *arguments]
    try:
        process = subprocess.run(
            command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIME_LIMIT_S, check=False
        )
        answers = [] if process.returncode else [json.loads(line) for line in process.stdout.splitlines()]
    except (subprocess.TimeoutExpired, ValueError) as error:
        return [], f"{PROGRAM_NAME}: {error}"
    if len(answers) != len(arguments):
        message = process.stderr.decode(errors="replace").strip()[-_LAST_CHARACTERS:]
        return [], f"{PROGRAM_NAME} ended with exit code {process.returncode}: {message}"
    return answers, ""


def _compare(
    files: ExportedFiles, answers: Sequence[dict[str, Any]], logits: npt.NDArray[np.float32]
) -> tuple[int, float]:
    """Return how many answers have other labels than the graph, and the largest difference of a score.

    A label with a score within `MAX_SCORE_DIFFERENCE` of its limit is optional.
    """
    import numpy as np

    from trainer.predict.program import sigmoid, softmax

    classes, other_labels, differences = files.shards.classes, 0, [0.0]
    labels = json.loads((files.folder / LABELS_NAME).read_bytes())
    has_thresholds = isinstance(labels[0], dict)
    for answer, scores in zip(answers, (sigmoid if has_thresholds else softmax)(logits), strict=False):
        limits = np.array([entry["threshold"] for entry in labels]) if has_thresholds else scores.max()
        expected = dict(zip(classes, scores.tolist(), strict=True))
        required = {classes[place] for place in np.flatnonzero(scores >= limits + MAX_SCORE_DIFFERENCE)}
        allowed = {classes[place] for place in np.flatnonzero(scores >= limits - MAX_SCORE_DIFFERENCE)}
        other_labels += not required <= set(answer["labels"]) <= allowed
        predictions = zip(answer["labels"], answer["scores"], strict=True)
        differences += [abs(score - expected.get(label, np.inf)) for label, score in predictions]
    return other_labels, float(max(differences))


def _source_file(shards: ShardManifest, source: str | None, path: str | None, stored: bytes) -> bytes:
    """Return the source file of a sample; `stored` if it was deleted, or no longer gives the same stored file.

    Args:
        shards: Manifest, with the changes that sharding makes to images.
        source: Folder of the source; None: unknown, or no image was changed.
        path: Of the sample in the source.
        stored: The file in the shard.
    """
    from records.pixels import UndecodableImage
    from records.source import read_source_file

    content = None if source is None or path is None else read_source_file(source, path)
    prepared = shards.prepared
    if content is None or prepared is None:
        return stored
    try:
        changed, is_repaired = change_as_sharded(content, prepared)
    except UndecodableImage:
        return stored
    # predict.py need not read a file that sharding had to repair.
    return content if changed == stored and not is_repaired else stored
