"""Writer of kineto traces, event by event; fields are those of torch 2.13, times are microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Self

HOST, GPU = 100, 0
MAIN = 100
COMPUTE = "ampere_sgemm_128x64_nn"
EXCHANGE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class KinetoWriter:
    """The events of one rank; each method adds one, and returns the writer."""

    def __init__(self, *, rank: int = 0, gpu: str | None = "NVIDIA A100-SXM4-40GB") -> None:
        self.rank, self.gpu = rank, gpu
        self.events: list[dict[str, Any]] = []

    def step(self, start: float, end: float) -> Self:
        """Add an optimizer step."""
        return self._add("user_annotation", f"ProfilerStep#{len(self.events)}", start, end)

    def kernel(self, start: float, end: float, *, stream: int = 7, name: str = COMPUTE, **arguments: Any) -> Self:
        """Add a kernel."""
        return self._add("kernel", name, start, end, stream, GPU, **{"device": 0, "stream": stream, **arguments})

    def exchange(self, start: float, end: float, *, stream: int = 40) -> Self:
        """Add a kernel of NCCL."""
        return self.kernel(start, end, stream=stream, name=EXCHANGE)

    def copy(self, start: float, end: float, kind: str = "HtoD (Pinned -> Device)") -> Self:
        """Add a copy."""
        return self._add("gpu_memcpy", f"Memcpy {kind}", start, end, 21, GPU, device=0, stream=21)

    def loader(self, start: float, end: float) -> Self:
        """Add waiting in next() of the loader."""
        return self._add("user_annotation", "shardline: loader", start, end)

    def operator(self, name: str, start: float, end: float, *, thread: int = MAIN, **arguments: Any) -> Self:
        """Add an operator of torch."""
        return self._add("cpu_op", name, start, end, thread, **arguments)

    def write(self, path: Path) -> Path:
        """Write the trace, gzipped if its name says so; return its path."""
        document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": self.events}
        document["distributedInfo"] = {"backend": "nccl" if self.gpu else "gloo", "rank": self.rank, "world_size": 2}
        if self.gpu is not None:
            document["deviceProperties"] = [{"id": 0, "name": self.gpu}, {"id": 1, "name": self.gpu}]
        data = json.dumps(document).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    def _add(
        self,
        category: str,
        name: str,
        start: float,
        end: float,
        thread: int = MAIN,
        process: int = HOST,
        **arguments: Any,
    ) -> Self:
        event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "args": arguments}
        self.events.append(event | {"ts": start, "dur": end - start})
        return self
