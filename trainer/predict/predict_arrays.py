"""Run the ONNX model that lies beside this file on arrays.

    python predict.py INPUTS.npz OUTPUTS.npz [--threads N] [--model FILE] [--url http://HOST:8000]

It needs Python 3.10 or newer, numpy and onnxruntime, and beside it runtimes.py (which runs the model), signature.json
(names, types and shapes of inputs and outputs) and the model that it names. INPUTS.npz holds an array for each input,
under its name, as the model takes them: how samples become inputs is the task's own code. The first dimension of all
arrays is that of the samples. OUTPUTS.npz gets an array for each output. Exit codes: 0; 2 for a bad argument, inputs
that do not fit, or a folder that is not whole. Batches are cut to `max_batch` of signature.json.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from trainer.predict import reading, runtimes
else:
    # The shipped file: isolated (-I), Python does not look into its folder, and no file is to be written there.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    import reading

    # Before anything else imports them, which would find files of this folder first.
    reading.require_packages({"numpy": "numpy"})
    import runtimes

import numpy as np

SIGNATURE_NAME = "signature.json"


def main(arguments: list[str] | None = None) -> int:
    """Run the command (see the top of this file); return the exit code."""
    parser = argparse.ArgumentParser(description="Run a model on arrays.", allow_abbrev=False)
    parser.add_argument("inputs", metavar="INPUTS.npz", help="an array for each input, under its name")
    parser.add_argument("outputs", metavar="OUTPUTS.npz", help="file to write: an array for each output")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime [1]")
    parser.add_argument("--model", metavar="FILE", help="another model of the same folder")
    parser.add_argument("--url", metavar="URL", help="ask a running Triton: http://HOST:8000")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: allowed are whole numbers from 1")
    if not Path(options.outputs).absolute().parent.is_dir():
        parser.error(f"OUTPUTS.npz {options.outputs}: its folder is not there; make it, or name another")
    folder = Path(__file__).resolve().parent
    try:
        said = read_signature(folder)
        inputs = read_inputs(Path(options.inputs), said)
        specs = {name: (spec["dtype"], _sizes(spec)) for name, spec in said["inputs"].items()}
        graph = runtimes.Graph(said["model"], specs, list(said["outputs"]))
        if options.url is not None:
            run = runtimes.open_server(options.url, graph)
        else:
            run = runtimes.open_graph(folder / (options.model or graph.path), graph, options.threads)
        outputs = run_batches(run, inputs, said["max_batch"])
        with open(options.outputs, "wb") as stream:
            np.savez(stream, **outputs)  # type: ignore[arg-type]
    except (runtimes.BadInput, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return reading.EXIT_BAD_INPUT
    return 0


def read_signature(folder: Path) -> dict[str, Any]:
    """Read signature.json of a folder.

    Raises:
        BadInput: It is missing, or none.
    """
    said: dict[str, Any] = runtimes.read_json(folder / SIGNATURE_NAME)
    lacks = [name for name in ("model", "max_batch", "inputs", "outputs", "dimensions") if name not in said]
    if lacks:
        raise runtimes.BadFolder(f"{folder / SIGNATURE_NAME} lacks {', '.join(lacks)}", allowed="all of them")
    return said


def read_inputs(path: Path, said: dict[str, Any]) -> runtimes.Arrays:
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
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise runtimes.BadInput(
            f"{path} cannot be read: {error}", allowed=f"a .npz file of {wanted}", todo=todo
        ) from None
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        spec = said["inputs"].get(name)
        if spec is None:
            raise runtimes.BadInput(f"{path} has {name}, which is no input", allowed=wanted, todo=todo)
        fits = str(array.dtype) == spec["dtype"] and array.ndim == len(spec["shape"]) and array.size > 0
        for size, one in zip(array.shape, spec["shape"], strict=False):
            fits &= size == (sizes.setdefault(one, size) if isinstance(one, str) else one)
        if not fits:
            raise runtimes.BadInput(f"{name} is {array.dtype} {list(array.shape)}", allowed=wanted, todo=todo)
    if missing := [name for name in said["inputs"] if name not in arrays]:
        raise runtimes.BadInput(f"{path} lacks {', '.join(missing)}", allowed=wanted, todo=todo)
    for name, limits in said["dimensions"].items():
        size = sizes.get(name, limits["opt"])
        if not limits["min"] <= size <= limits["max"] or size % limits["multiple"]:
            allowed = f"{limits['min']} to {limits['max']}, a multiple of {limits['multiple']}"
            raise runtimes.BadInput(f"{name} is {size}", allowed=allowed, todo="pad or cut the inputs")
    return arrays


def run_batches(run: runtimes.Runner, inputs: runtimes.Arrays, max_batch: int) -> runtimes.Arrays:
    """Return the outputs of a model, a batch at a time.

    Args:
        run: Runs a batch.
        inputs: By name.
        max_batch: Most samples at a time.

    Raises:
        BadInput: The model cannot be run.
    """
    samples, parts = len(next(iter(inputs.values()))), []
    for start in range(0, samples, max_batch):
        try:
            parts.append(run({name: array[start : start + max_batch] for name, array in inputs.items()}))
        except runtimes.BadInput:
            raise
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises classes of its own
            reason = str(error).partition("\n")[0]
            raise runtimes.BadInput(f"the model: {reason}", allowed="the model of the export", todo="copy it") from None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _sizes(spec: dict[str, Any]) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in spec["shape"]]


if __name__ == "__main__":
    sys.exit(main())
