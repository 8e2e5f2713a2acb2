"""Answers a shipped predict.py over loopback with what a graph gave before, for inputs that it was given before.

Here: `KnownServer`, used by the bundle gate of images (trainer/tasks/images/gate.py). The gates have run the fp32 graph
on the trainer's own inputs. Where predict.py makes the same inputs to the bit, the outputs are the same; only for
others the graph runs again. It speaks KServe's protocol v2, as Triton does, as far as runtimes.py asks.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trainer.export.gates import parity
from trainer.export.gates.arrays import Array, Arrays, StoredArrays, join_batches
from trainer.predict.runtimes import DATATYPES

_ADDRESS = "127.0.0.1"
_PATH = "/v2/models/known"
_AT_A_TIME = 32
_LENGTH = "Inference-Header-Content-Length"
_DTYPES = {datatype: name for name, datatype in DATATYPES.items()}


class KnownServer:
    """A server of one graph. Use it as a context: it listens until its end.

    Args:
        graph: The fp32 ONNX file.
        inputs: What the graph was given; all samples are of one shape.
        outputs: What it gave.
        threads: Intra-op threads of ONNX Runtime.

    Attributes:
        url: Where it answers.
        others: Samples that it was asked about and that are none of `inputs`.
    """

    def __init__(self, graph: Path, inputs: StoredArrays, outputs: StoredArrays, *, threads: int) -> None:
        self._graph, self._threads, self._stack = graph, threads, ExitStack()
        self._run: parity.Runner | None = None
        self._outputs = join_batches(outputs.batches(_AT_A_TIME))
        self._rows: dict[bytes, int] = {}
        row = 0
        for batch in inputs.batches(_AT_A_TIME):
            for key in _keys(batch):
                self._rows[key] = row
                row += 1
        self.described = {"inputs": _describe(inputs.fill(1)), "outputs": _describe(self._outputs)}
        self.others = 0

    def __enter__(self) -> KnownServer:
        handler = type("Handler", (_Handler,), {"known": self})
        server = self._stack.enter_context(HTTPServer((_ADDRESS, 0), handler))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        # The last one first: it is told to stop, and then waited for.
        self._stack.callback(thread.join)
        self._stack.callback(server.shutdown)
        self.url = f"http://{_ADDRESS}:{server.server_port}{_PATH}"
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def answer(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs of a batch: of samples that the graph has seen those from before."""
        keys = _keys(inputs)
        rows = [self._rows[key] for key in keys if key in self._rows]
        self.others += len(keys) - len(rows)
        if len(rows) == len(keys):
            return {name: array[rows] for name, array in self._outputs.items()}
        if self._run is None:
            self._run = parity.open_graph(self._graph, threads=self._threads)
        return self._run(inputs)


def _keys(batch: Mapping[str, Array]) -> list[bytes]:
    """Return what tells the samples of a batch from others: a hash of all bytes of their inputs."""
    keys = []
    for place in range(len(next(iter(batch.values())))):
        digest = hashlib.sha256()
        for name in sorted(batch):
            digest.update(batch[name][place].tobytes())
        keys.append(digest.digest())
    return keys


def _describe(arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": DATATYPES[str(array.dtype)], "shape": [-1, *array.shape[1:]]}
        for name, array in arrays.items()
    ]


class _Handler(BaseHTTPRequestHandler):
    known: ClassVar[KnownServer]

    def do_GET(self) -> None:
        """Say what the model takes and gives."""
        self._send(json.dumps(self.known.described).encode(), b"")

    def do_POST(self) -> None:
        """Answer a batch, whose tensors lie behind the JSON."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        place = int(self.headers[_LENGTH])
        inputs: Arrays = {}
        for one in json.loads(content[:place])["inputs"]:
            end = place + one["parameters"]["binary_data_size"]
            inputs[one["name"]] = np.frombuffer(content[place:end], _DTYPES[one["datatype"]]).reshape(one["shape"])
            place = end
        said, parts = [], []
        for name, array in self.known.answer(inputs).items():
            parts.append(np.ascontiguousarray(array).tobytes())
            tensor = {"name": name, "datatype": DATATYPES[str(array.dtype)], "shape": list(array.shape)}
            said.append({**tensor, "parameters": {"binary_data_size": len(parts[-1])}})
        self._send(json.dumps({"outputs": said}).encode(), b"".join(parts))

    def _send(self, header: bytes, tensors: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(header) + len(tensors)))
        self.send_header(_LENGTH, str(len(header)))
        self.end_headers()
        self.wfile.write(header + tensors)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""
