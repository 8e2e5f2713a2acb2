"""Run the ONNX model that lies beside this file on arrays.

    python predict.py INPUTS.npz OUTPUTS.npz [--threads N] [--model FILE]

It needs Python 3.10 or newer, numpy and onnxruntime, and two files in its own folder: signature.json (names, types and
shapes of inputs and outputs) and the model that it names. INPUTS.npz holds an array for each input, under its name, as
the model takes them: how samples become inputs is the task's own code. The first dimension of all arrays is that of the
samples. OUTPUTS.npz gets an array for each output. Exit codes: 0; 2 for a bad argument, inputs that do not fit, or a
folder that is not whole.

ONNX Runtime runs on the CPU without graph optimisation, as in the model's proof: its fusions were seen to change what a
sound quantised model computes. Batches are cut to `max_batch` of signature.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIGNATURE_NAME = "signature.json"
EXIT_BAD_INPUT = 2

Arrays = dict[str, npt.NDArray[Any]]


class BadInput(Exception):
    """Something that was given cannot be used; the message says what was found, what is allowed and what to do."""

    def __init__(self, found: str, *, allowed: str, todo: str) -> None:
        super().__init__(f"{found}\n  allowed: {allowed}\n  to do: {todo}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    parser = argparse.ArgumentParser(description="Run a model on arrays.", allow_abbrev=False)
    parser.add_argument("inputs", metavar="INPUTS.npz", help="an array for each input, under its name")
    parser.add_argument("outputs", metavar="OUTPUTS.npz", help="file to write: an array for each output")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime [1]")
    parser.add_argument("--model", metavar="FILE", help="another model of the same folder")
    options = parser.parse_args(arguments)
    folder = Path(__file__).resolve().parent
    try:
        said = read_signature(folder)
        inputs = read_inputs(Path(options.inputs), said)
        outputs = run(folder / (options.model or said["model"]), inputs, said["max_batch"], options.threads)
        with open(options.outputs, "wb") as stream:
            np.savez(stream, **outputs)  # type: ignore[arg-type]
    except (BadInput, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


def read_signature(folder: Path) -> dict[str, Any]:
    """Read signature.json of a folder.

    Raises:
        BadInput: It is missing, or none.
    """
    todo = "export again, or copy the whole folder again"
    try:
        said: dict[str, Any] = json.loads((folder / SIGNATURE_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / SIGNATURE_NAME} cannot be read: {error}", allowed="it", todo=todo) from None
    lacks = [name for name in ("model", "max_batch", "inputs", "outputs", "dimensions") if name not in said]
    if lacks:
        raise BadInput(f"{folder / SIGNATURE_NAME} lacks {', '.join(lacks)}", allowed="all of them", todo=todo)
    return said


def read_inputs(path: Path, said: dict[str, Any]) -> Arrays:
    """Read arrays, and hold them against the signature.

    Args:
        path: The .npz file.
        said: What signature.json says.

    Raises:
        BadInput: They do not fit, or it is no such file.
    """
    wanted = ", ".join(f"{name} {spec['dtype']} {spec['shape']}" for name, spec in said["inputs"].items())
    todo = "write it with numpy.savez(FILE, NAME=ARRAY, ...)"
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} cannot be read: {error}", allowed=f"a .npz file of {wanted}", todo=todo) from None
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        spec = said["inputs"].get(name)
        if spec is None:
            raise BadInput(f"{path} has {name}, which is no input", allowed=wanted, todo=todo)
        fits = str(array.dtype) == spec["dtype"] and array.ndim == len(spec["shape"]) and array.size > 0
        for size, one in zip(array.shape, spec["shape"], strict=False):
            fits &= size == (sizes.setdefault(one, size) if isinstance(one, str) else one)
        if not fits:
            raise BadInput(f"{name} is {array.dtype} {list(array.shape)}", allowed=wanted, todo=todo)
    if missing := [name for name in said["inputs"] if name not in arrays]:
        raise BadInput(f"{path} lacks {', '.join(missing)}", allowed=wanted, todo=todo)
    for name, limits in said["dimensions"].items():
        size = sizes.get(name, limits["opt"])
        if not limits["min"] <= size <= limits["max"] or size % limits["multiple"]:
            allowed = f"{limits['min']} to {limits['max']}, a multiple of {limits['multiple']}"
            raise BadInput(f"{name} is {size}", allowed=allowed, todo="pad or cut the inputs")
    return arrays


def run(model: Path, inputs: Arrays, max_batch: int, threads: int) -> Arrays:
    """Return the outputs of a model, a batch at a time.

    Args:
        model: The ONNX file.
        inputs: By name.
        max_batch: Most samples at a time.
        threads: Intra-op threads.

    Raises:
        BadInput: The model cannot be opened or run.
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    samples = len(next(iter(inputs.values())))
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_outputs()]
        parts = [
            session.run(names, {name: array[start : start + max_batch] for name, array in inputs.items()})
            for start in range(0, samples, max_batch)
        ]
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises classes of its own
        reason = str(error).partition("\n")[0]
        raise BadInput(f"{model.name}: {reason}", allowed="the model of the export", todo="copy it again") from None
    return {name: np.concatenate([part[place] for part in parts]) for place, name in enumerate(names)}


if __name__ == "__main__":
    sys.exit(main())
