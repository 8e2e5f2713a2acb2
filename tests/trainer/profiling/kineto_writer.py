"""Writes kineto traces event by event: what was recorded is what a test says, so its truth can be computed by hand.

Fields are those of torch 2.13 (libkineto/src/output_json.cpp); times are microseconds. gpu_trace.py plays whole steps
through instead.
"""

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
    """The events of one rank; each method adds one or two, and returns the writer."""

    def __init__(self, *, rank: int = 0, gpu: str | None = "NVIDIA A100-SXM4-40GB") -> None:
        self.rank, self.gpu = rank, gpu
        self.events: list[dict[str, Any]] = []
        self._number = 0

    def step(self, start: float, end: float, *, marked: bool = True) -> Self:
        """Add an optimizer step as the host went through it; `marked`: as the probe marks its parts."""
        self._host("user_annotation", f"ProfilerStep#{len(self.events)}", start, end)
        return self._host("user_annotation", "shardline: slot", start, end) if marked else self

    def kernel(
        self,
        start: float,
        end: float,
        *,
        stream: int = 7,
        name: str = COMPUTE,
        launched: float | None = None,
        **more: Any,
    ) -> Self:
        """Add a kernel, and the call that queued it at `launched` (as it starts)."""
        return self._on_gpu("kernel", name, start, end, stream, "cudaLaunchKernel", launched, more)

    def exchange(self, start: float, end: float, *, stream: int = 40, launched: float | None = None) -> Self:
        """Add a kernel of NCCL."""
        return self._on_gpu("kernel", EXCHANGE, start, end, stream, "cudaLaunchKernelExC", launched, {})

    def copy(self, start: float, end: float, kind: str = "HtoD (Pinned -> Device)", *, stream: int = 21) -> Self:
        """Add a copy."""
        return self._on_gpu("gpu_memcpy", f"Memcpy {kind}", start, end, stream, "cudaMemcpyAsync", None, {})

    def loader(self, start: float, end: float) -> Self:
        """Add waiting in next() of the loader."""
        return self._host("user_annotation", "shardline: loader", start, end)

    def call(self, name: str, start: float, end: float) -> Self:
        """Add a call of CUDA's runtime."""
        return self._host("cuda_runtime", name, start, end, correlation=0)

    def operator(self, name: str, start: float, end: float, *, thread: int = MAIN, **arguments: Any) -> Self:
        """Add an operator of torch."""
        return self._host("cpu_op", name, start, end, thread, **arguments)

    def gloo(self, start: float, end: float, *, thread: int = 300) -> Self:
        """Add an exchange of gloo, on a thread of its own."""
        return self._host("user_annotation", "gloo:all_reduce", start, end, thread)

    def write(self, path: Path) -> Path:
        """Write the trace, gzipped if its name says so; return its path."""
        document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": self.events}
        document["distributedInfo"] = {"backend": "nccl" if self.gpu else "gloo", "rank": self.rank, "world_size": 2}
        if self.gpu is not None:
            document["deviceProperties"] = [{"id": 0, "name": self.gpu}, {"id": 1, "name": self.gpu}]
        data = json.dumps(document).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    def _host(self, category: str, name: str, start: float, end: float, thread: int = MAIN, **arguments: Any) -> Self:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": thread, "ts": start, "dur": end - start}
            | {"args": arguments}
        )
        return self

    def _on_gpu(
        self,
        category: str,
        name: str,
        start: float,
        end: float,
        stream: int,
        call: str,
        launched: float | None,
        more: dict[str, Any],
    ) -> Self:
        self._number += 1
        given = {"device": 0, "stream": stream, "correlation": self._number, "External id": self._number} | more
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": GPU, "tid": stream, "ts": start, "dur": end - start}
            | {"args": given}
        )
        at = start if launched is None else launched
        return self._host("cuda_runtime", call, at, at, correlation=self._number)
