"""What runs the model of an export, and how its files are read: shared by every predict.py, beside which it lies.

Here: `open_graph` (ONNX Runtime on the CPU), `open_server` (a running Triton over HTTP, by the standard library alone),
and `read_entries`. Python 3.10, numpy and onnxruntime are all it needs; to ask a server not even the latter.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING or __package__:
    from trainer.predict.reading import BadInput as BadInput
else:
    # The shipped file, which is no part of a package.
    from reading import BadInput as BadInput

Arrays = dict[str, npt.NDArray[Any]]
Runner = Callable[[Mapping[str, npt.NDArray[Any]]], Arrays]
"""Maps inputs by name to outputs by name, of at most `max_batch` samples."""

# Seconds that a server may take for a batch.
_SERVER_LIMIT_S = 300.0
# Types of numpy as the protocol of servers (KServe v2) calls them, and others than these as ONNX Runtime does.
DATATYPES = {"float32": "FP32", "float16": "FP16", "int64": "INT64", "int32": "INT32", "uint8": "UINT8"}
DATATYPES |= {"bool": "BOOL"}
_ONNX_TYPES = {"tensor(float)": "float32"}
# Optimisation of ONNX Runtime by the level in config.pbtxt, as Triton's backend reads it (its source of 2026-06).
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_LEVEL = re.compile(r"\bgraph\s*:?\s*\{\s*level\s*:\s*(-?\d+)")


class BadFolder(BadInput):
    """The files of the export cannot be used."""

    def __init__(self, found: str, *, allowed: str, todo: str = "export again, or copy the whole folder again") -> None:
        super().__init__(found, allowed=allowed, todo=todo)


@dataclass(frozen=True)
class Graph:
    """What the files beside a graph say of it."""

    path: str
    """Below the export's folder."""
    inputs: Mapping[str, tuple[str, Sequence[int | None]]]
    """Type and shape of each input; None: any size."""
    outputs: Sequence[str]
    """Those that are read."""


def open_graph(path: Path, graph: Graph, threads: int) -> Runner:
    """Return a function that runs an ONNX file on the CPU, optimised as its proof has it (`graph_level`).

    Raises:
        BadFolder: The file is missing, is no model, or does not take what the export's files describe.
    """
    if not path.is_file():
        raise BadFolder(f"{path} is not there", allowed="the ONNX model of the export")
    # Else it reports its use to its maker while it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise BadInput(
            f"{sys.executable} cannot import onnxruntime: {error}",
            allowed="onnxruntime, or a running Triton (--url)",
            todo=f"{sys.executable} -m pip install onnxruntime",
        ) from None

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, graph_level(path))
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: they are raised as well
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - its exceptions have no class in common
        raise BadFolder(f"{path} does not load: {error}", allowed="a whole ONNX model") from None
    taken = {
        item.name: (_ONNX_TYPES.get(item.type, item.type.removeprefix("tensor(").removesuffix(")")), item.shape)
        for item in session.get_inputs()
    }
    _compare(path.name, taken, [item.name for item in session.get_outputs()], graph)
    names = list(graph.outputs)
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def graph_level(path: Path) -> str:
    """Return ONNX Runtime's optimisation for a file: that of the config.pbtxt which serves it, else none.

    The gates ran the file so; another level may change what a sound quantised model computes.
    """
    config = path.resolve().parent.parent / "config.pbtxt"
    if not config.is_file():
        return "ORT_DISABLE_ALL"
    found = _LEVEL.search(config.read_text(encoding="utf-8"))
    return _LEVELS.get(int(found.group(1)) if found else 0, "ORT_ENABLE_ALL")


def open_server(url: str, graph: Graph) -> Runner:
    """Return a function that asks a running Triton over HTTP (KServe's protocol v2, tensors as binary data).

    Args:
        url: http://HOST:PORT, with /v2/models/NAME behind it where the model has another name there than in the export.
        graph: Its path in the export names it.

    Raises:
        BadInput: Nothing answers, or its model is another.
    """
    base = url.rstrip("/")
    if "/v2/models/" not in base:
        parts = Path(graph.path).parts
        if len(parts) < 3:
            raise BadInput(
                f"--url {url}: the export does not say how Triton calls its model",
                allowed="http://HOST:PORT/v2/models/NAME",
                todo="add the model's name",
            )
        base += f"/v2/models/{parts[-3]}"
    kinds = {datatype: name for name, datatype in DATATYPES.items()}
    with _talking_to(base):
        said = json.loads(_ask_server(base)[0])
        taken = {one["name"]: (kinds.get(one["datatype"], ""), one["shape"]) for one in said["inputs"]}
        given = [one["name"] for one in said["outputs"]]
    _compare(base, taken, given, graph)

    def run(inputs: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        content = [np.ascontiguousarray(array).tobytes() for array in inputs.values()]
        asked = {
            "inputs": [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": DATATYPES[str(array.dtype)],
                    "parameters": {"binary_data_size": len(part)},
                }
                for (name, array), part in zip(inputs.items(), content, strict=True)
            ],
            "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in graph.outputs],
        }
        header = json.dumps(asked).encode()
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
        with _talking_to(base):
            return _read_tensors(*_ask_server(f"{base}/infer", b"".join((header, *content)), headers))

    return run


def _read_tensors(content: bytes, header_bytes: int | None) -> Arrays:
    """Return the outputs of an answer; behind its JSON lie those that are binary."""
    said, place, found = json.loads(content[:header_bytes]), header_bytes or 0, {}
    kinds = {datatype: name for name, datatype in DATATYPES.items()}
    for one in said["outputs"]:
        num_bytes = one.get("parameters", {}).get("binary_data_size")
        if num_bytes is None:
            array = np.array(one["data"], kinds[one["datatype"]])
        else:
            array = np.frombuffer(content[place : place + num_bytes], kinds[one["datatype"]])
            place += num_bytes
        found[one["name"]] = array.reshape(one["shape"])
    return found


def _ask_server(
    url: str, data: bytes | None = None, headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[bytes, int | None]:
    """Return an answer, and how much of it is JSON (None: all)."""
    request = urllib.request.Request(url, data, dict(headers))
    with urllib.request.urlopen(request, timeout=_SERVER_LIMIT_S) as answer:
        length = answer.headers.get("Inference-Header-Content-Length")
        return answer.read(), None if length is None else int(length)


@contextmanager
def _talking_to(url: str) -> Iterator[None]:
    """Turn whatever goes wrong with a server, its address and its answers into BadInput."""
    try:
        yield
        return
    except urllib.error.HTTPError as error:
        reason = f"does not answer: {error.code}: {error.read()[:500].decode(errors='replace')}"
    except OSError as error:
        reason = f"does not answer: {getattr(error, 'reason', error)}"
    except (HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        # Of an address that is none, or of an answer that is not of KServe's protocol.
        reason = f"gives no answer that can be read: {type(error).__name__}: {error}"
    raise BadInput(
        f"{url} {reason}",
        allowed="http://HOST:PORT of a running Triton that has loaded the model",
        todo="start it (triton/README.md says how), or correct --url",
    )


def _compare(where: str, taken: Mapping[str, tuple[str, Sequence[Any]]], given: Sequence[str], graph: Graph) -> None:
    """Refuse a model that does not take what the files beside it describe."""
    fits = taken.keys() == graph.inputs.keys() and set(graph.outputs) <= set(given)
    for name, (dtype, shape) in graph.inputs.items() if fits else ():
        # A dimension that is a text, or -1, is free.
        sizes = [None if isinstance(size, str) or size is None or size < 0 else size for size in taken[name][1]]
        fits &= taken[name][0] == dtype and len(sizes) == len(shape)
        fits &= all(None in pair or pair[0] == pair[1] for pair in zip(sizes, shape, strict=False))
    if not fits:
        said = ", ".join(f"{name} {dtype} {list(shape)}" for name, (dtype, shape) in graph.inputs.items())
        raise BadFolder(
            f"{where} takes {dict(taken)} and gives {list(given)}, the export's files say {said} and "
            f"{', '.join(graph.outputs)}",
            allowed="a model and files of one export",
        )


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Map logits [..., classes] to probabilities."""
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def check_logits(logits: npt.NDArray[Any], samples: int, labels: Sequence[str]) -> npt.NDArray[Any]:
    """Return logits [B, classes] as they are.

    Raises:
        BadFolder: There are more or fewer than labels.
    """
    if logits.shape != (samples, len(labels)):
        raise BadFolder(
            f"the model gave {list(logits.shape)} for {samples} samples, there are {len(labels)} labels",
            allowed="a logit for each label",
        )
    return logits


def likeliest(logits: npt.NDArray[Any], labels: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Return the likeliest labels of one sample with their probabilities, the highest first.

    Args:
        logits: [classes].
        labels: Names of the classes.
        most: Labels at most.
    """
    scores = softmax(logits)
    # By the logits: in float64 two scores of one rounding would be a tie. Of equal ones the first counts.
    places = np.argsort(-logits, kind="stable")[:most]
    return [{"label": labels[place], "score": float(scores[place])} for place in places]


def likeliest_of(logits: npt.NDArray[Any], labels: Sequence[str], top: int) -> dict[str, Any]:
    """Return the answer to a sample: its likeliest label, and where more than one is asked for all of them."""
    found = likeliest(logits, labels, top)
    return {**found[0], **({"predictions": found} if top > 1 else {})}


def read_labels(path: Path) -> list[str]:
    """Read the names of the classes.

    Raises:
        BadFolder: The file is missing, or is no list of names.
    """
    labels = read_json(path)
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise BadFolder(f"{path} is no list of names", allowed="a JSON list of texts")
    return labels


def read_json(path: Path) -> Any:
    """Read a JSON file of the export.

    Raises:
        BadFolder: It is missing, or is none.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror}", allowed="it beside predict.py") from None
    except ValueError as error:
        raise BadFolder(f"{path} is no JSON: {error}", allowed="the file that the export wrote") from None


def read_entries(path: Path, rules: Mapping[str, Callable[[Any], bool]], optional: Sequence[str], allowed: str) -> Any:
    """Read a JSON object of the export, in which every entry is known and allowed.

    Args:
        path: The file.
        rules: Whether a value is allowed, by entry.
        optional: Entries that may be missing.
        allowed: In words.

    Raises:
        BadFolder: It lacks an entry, or has one that is not known or not allowed.
    """
    values = read_json(path)
    found = set(values) if isinstance(values, dict) else set()
    missing, unknown = sorted(set(rules) - set(optional) - found), sorted(found - set(rules))
    if not isinstance(values, dict) or missing or unknown:
        raise BadFolder(f"{path}: missing: {missing}; not known: {unknown}", allowed=", ".join(rules))
    if wrong := [
        f"{name} {json.dumps(values[name])}" for name, rule in rules.items() if name in found and not rule(values[name])
    ]:
        raise BadFolder(f"{path}: {', '.join(wrong)}", allowed=allowed)
    return values


def is_file_name(value: Any) -> bool:
    """Whether it names a file of a folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and Path(value).name == value


def is_path_below(value: Any) -> bool:
    """Whether it is a path of a file below a folder."""
    return isinstance(value, str) and value != "" and all(is_file_name(part) for part in value.split("/"))


def is_text(value: Any) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and value != ""


def is_size(value: Any) -> bool:
    """Whether it is a whole number from 1."""
    return type(value) is int and value >= 1
