"""What int8 costs in answers and saves in bytes, and which way of choosing its scales is best, from one run.

    python benchmarks/int8.py                                              # everything
    python benchmarks/int8.py --only digits --record benchmarks/results

Ours (trainer/export/graph/quantize.py: smallest and largest value) stands beside ONNX Runtime's other calibrations of
the same nodes, and beside its default of quantising every operator. Trained digits, three seeds: right answers and the
smallest cosine of the logits on the test split. ResNet-50 and ViT-B are random: on pictures of coloured blocks cosines
only, the peak memory of quantising at 16 images a batch, and the size of the engines for sm89. Nothing is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.figures import describe_machine, record
from contracts.config import ModelSection
from tests.trainer.export import digits
from tests.trainer.export.conftest import write_fp32
from tests.trainer.export.graphs import image_signature
from tests.trainer.tasks.for_tests import image_network
from trainer.export.engines.engine import build_engine
from trainer.export.gates.arrays import store_arrays
from trainer.export.gates.parity import compare, open_graph
from trainer.export.graph.coverage import QUANTIZABLE, measure_coverage
from trainer.export.graph.precision import convert_to_fp16
from trainer.export.graph.quantize import quantize_to_int8
from trainer.export.processes import run_step
from trainer.export.targets import TENSORRT_RTX, Builder

OURS = "ours: smallest and largest"
# What is compared: ONNX Runtime's name of a calibration, its options, and whether all operators are quantised.
OTHERS: dict[str, tuple[str, dict[str, float], bool]] = {
    "percentile 99.99": ("Percentile", {"CalibPercentile": 99.99}, False),
    "percentile 99.9": ("Percentile", {"CalibPercentile": 99.9}, False),
    "entropy": ("Entropy", {}, False),
    "smallest and largest, every operator": ("MinMax", {}, True),
}
INPUT, OUTPUT = "images", "logits"
BATCH_SIZE = 16
CALIBRATION = 512
LARGE_CALIBRATION, LARGE_TEST = 32, 16
LARGE_SIZE = 224
# Names of transformers' architectures.
LARGE = {"ResNet-50": "resnet", "ViT-B": "vit"}


class Batches:
    """ONNX Runtime's CalibrationDataReader, a batch at a time, so that histograms are made batch by batch."""

    def __init__(self, images: np.ndarray) -> None:
        self._images = images
        self.set_range(0, len(images))

    def __len__(self) -> int:
        return len(self._images)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Choose what comes next."""
        self._next, self._end = start_index, end_index

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next batch."""
        batch = np.ascontiguousarray(self._images[self._next : min(self._next + BATCH_SIZE, self._end)])
        self._next += len(batch)
        return {INPUT: batch} if len(batch) else None


def quantise_otherwise(source: Path, target: Path, images: np.ndarray, name: str) -> None:
    """Quantise by ONNX Runtime with one of `OTHERS`."""
    import onnxruntime.quantization as ort  # type: ignore[import-untyped]

    method, options, everything = OTHERS[name]
    inputs_only = {} if everything else {"OpTypesToExcludeOutputQuantization": list(QUANTIZABLE)}
    with contextlib.redirect_stdout(io.StringIO()):
        ort.quantize_static(
            source,
            target,
            Batches(images),
            quant_format=ort.QuantFormat.QDQ,
            op_types_to_quantize=None if everything else list(QUANTIZABLE),
            per_channel=True,
            calibrate_method=ort.CalibrationMethod[method],
            extra_options={
                "ActivationSymmetric": True,
                "AddQDQPairToWeight": True,
                "QuantizeBias": False,
                "CalibStridedMinMax": BATCH_SIZE,
                **inputs_only,
                **options,
            },
        )


def export(model: torch.nn.Module, folder: Path, image_size: int) -> Path:
    """Export a model."""
    classes = model(torch.zeros(2, 3, image_size, image_size)).shape[1]
    write_fp32(model, folder / "fp32.onnx", size=image_size, classes=classes)
    return folder / "fp32.onnx"


def run_graph(path: Path, images: np.ndarray) -> np.ndarray:
    """Return the logits of a graph."""
    run = open_graph(path, threads=1, precision="int8")
    starts = range(0, len(images), BATCH_SIZE)
    return np.concatenate([run({INPUT: images[at : at + BATCH_SIZE]})[OUTPUT] for at in starts])


def count_right(logits: np.ndarray, labels: Any) -> int:
    """Return how many of the largest logits are at their label."""
    return int((logits.argmax(axis=1) == np.asarray(labels)).sum())


def compare_ways(folder: Path, fp32: Path, images: np.ndarray, test: np.ndarray, labels: Any = None) -> dict[str, Any]:
    """Return what becomes of the logits, by way of quantising; ours also with fp16 for the rest, as it ships."""
    calibration = store_arrays(Path(tempfile.mkdtemp(dir=folder)) / "images", [{INPUT: images}])
    ours, shipped, other = (folder / f"{name}.onnx" for name in ("int8", "mixed", "other"))
    _, cost = run_step(
        quantize_to_int8,
        fp32,
        ours,
        calibration=calibration,
        batch_size=BATCH_SIZE,
        threads=1,
        work=folder,
    )
    convert_to_fp16(ours, shipped)
    reference = run_graph(fp32, test)

    def look(path: Path) -> dict[str, Any]:
        logits = run_graph(path, test)
        specs = image_signature(images.shape[2], reference.shape[1]).outputs
        found = compare([{OUTPUT: reference}], [{OUTPUT: logits}], outputs=specs, ran="", precision="int8")
        right = {} if labels is None else {"right": count_right(logits, labels)}
        return {"smallest cosine": found.min_cosine, "same answer": found.top1_agreement, **right}

    answer: dict[str, Any] = {
        "test images": len(test),
        "classes that fp32 predicts": len(np.unique(reference.argmax(axis=1))),
        **({} if labels is None else {"right in fp32": count_right(reference, labels)}),
        "peak memory, bytes": cost.peak_bytes,
        "fp32 weights, bytes": fp32.stat().st_size,
        "coverage": measure_coverage(shipped, "int8"),
        OURS: look(ours),
        f"{OURS}, the rest fp16": look(shipped),
    }
    for name in OTHERS:
        quantise_otherwise(fp32, other, images, name)
        answer[name] = look(other)
    return answer


def engine_sizes(folder: Path, fp32: Path, image_size: int) -> dict[str, Any]:
    """Return the bytes of engines for sm89, and their ratio to fp32's."""
    convert_to_fp16(fp32, folder / "fp16.onnx")
    builder = Builder(TENSORRT_RTX, "installed", ("sm89",))
    sizes = {}
    for name in ("fp32", "fp16", "mixed"):
        run_step(
            build_engine,
            folder / f"{name}.onnx",
            folder / "engine",
            builder=builder,
            signature=image_signature(image_size),
            opt_batch=8,
            max_batch=32,
        )
        sizes[{"mixed": "int8"}.get(name, name)] = (folder / "engine").stat().st_size
    return {name: {"bytes": size, "to fp32": round(size / sizes["fp32"], 3)} for name, size in sizes.items()}


def measure_digits(seed: int) -> dict[str, Any]:
    """Train the digits, and quantise them in every way."""
    data = digits.read_digits()
    images, _ = digits.to_input(data["train"][:CALIBRATION])
    test, labels = digits.to_input(data["test"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fp32 = export(digits.train_digits(seed=seed), folder, digits.IMAGE_SIZE)
        answer = compare_ways(folder, fp32, images.numpy(), test.numpy(), labels.numpy())
        return {**answer, "engines for sm89": engine_sizes(folder, fp32, digits.IMAGE_SIZE)}


def measure_large(architecture: str) -> dict[str, Any]:
    """Quantise a random network of transformers' default configuration in every way."""
    random = np.random.default_rng(0)

    def blocks(number: int) -> np.ndarray:
        pixels = random.integers(0, 256, (number, 3, 8, 8)).astype(np.float32) / 255
        return ((pixels - 0.5) / 0.25).repeat(LARGE_SIZE // 8, axis=2).repeat(LARGE_SIZE // 8, axis=3)

    torch.manual_seed(0)
    model = image_network(ModelSection(architecture=architecture), 1000, LARGE_SIZE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fp32 = export(model, folder, LARGE_SIZE)
        del model
        answer = compare_ways(folder, fp32, blocks(LARGE_CALIBRATION), blocks(LARGE_TEST))
        return {**answer, "engines for sm89": engine_sizes(folder, fp32, LARGE_SIZE)}


def main() -> None:
    """Measure, print, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("digits", *LARGE), help="one part")
    parser.add_argument("--record", type=Path, help="folder for the dated results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # The quantiser advises its pre-processing.
    logging.getLogger().setLevel(logging.ERROR)
    about = describe_machine("torch", "onnx", "onnxruntime", "tensorrt_rtx_cu13")
    parts: dict[str, object] = {}
    for name in (given.only,) if given.only else ("digits", *LARGE):
        if name == "digits":
            found = {f"digits, seed {seed}": measure_digits(seed) for seed in range(3)}
        else:
            found = {name: measure_large(LARGE[name])}
        print(json.dumps(found, indent=1), flush=True)
        parts |= {part: {"about": about, **answer} for part, answer in found.items()}
    if given.record:
        record(given.record, "int8", parts)


if __name__ == "__main__":
    main()
