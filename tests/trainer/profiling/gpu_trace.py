"""Writes kineto traces of steps on a GPU that nobody recorded: SYNTHETIC, for tests and for pages without a GPU.

A host and a GPU are played through: the host queues kernels one after the other, the GPU works them off, and who waits
for whom follows from it, so that a fault planted in one place has its consequences in the others. Names of fields,
categories and kernels are those of public traces (HolisticTraceAnalysis, tests/data: V100, A100 and MI250 traces of
2022 to 2024; torch, test/inductor/test_analysis.py: an H100's of 2025), the form of the head is torch 2.13's. Every
trace says that it is synthetic, in its head and as the label of its processes, which strip_host leaves in place.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SYNTHETIC = "synthetic: written by tests/trainer/profiling/gpu_trace.py, recorded by no GPU"
HOST, USER = "gpu-node-17.example.internal", "trainer-of-models"

_PID, _MAIN, _BACKWARD = 4242, 4242, 4311
_STREAM, _COPY_STREAM, _EXCHANGE_STREAM = 7, 21, 40

_FORWARD = (
    ("aten::cudnn_convolution", "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"),
    ("aten::cudnn_batch_norm", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnn)"),
    ("aten::clamp_min", "void at::native::vectorized_elementwise_kernel<4, at::native::clamp_min_scalar>(int)"),
    ("aten::addmm", "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"),
)
_BACKWARD_OPERATORS = (
    ("aten::convolution_backward", "sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64"),
    ("aten::cudnn_batch_norm_backward", "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)"),
    ("aten::threshold_backward", "void at::native::vectorized_elementwise_kernel<4, at::native::threshold>(int)"),
    ("aten::mm", "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nt"),
)
_NO_TENSOR_CORES = "volta_sgemm_128x64_nn"
_LAYOUT = ("aten::copy_", "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, 0>(cudnn::ops)")
_UPDATE = ("aten::_fused_adamw_", "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor>(int)")
_EXCHANGE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write_gpu_trace(path: Path, **what_is_wrong: Any) -> Path:
    """Write a trace, gzipped if its name says so; return its path.

    Args:
        path: .json or .json.gz.
        **what_is_wrong: Fields of `Plan`; without any, nothing is: the GPU is busy all the time.
    """
    plan = Plan(**what_is_wrong)
    document = _Recording(plan).document(path)
    data = json.dumps(document, indent=None).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


@dataclass(frozen=True)
class Plan:
    """What happens in each step; times are in microseconds."""

    gpu_name: str = "NVIDIA A100-SXM4-40GB"
    rank: int = 0
    ranks: int = 1
    steps: int = 3
    slots: int = 2
    """Of a step."""
    kernels: int = 60
    """Of the forward pass of a slot, and twice as many of the backward pass."""
    kernel_us: float = 120.0
    launch_us: float = 6.0
    """What the host needs to queue a kernel."""
    names: int = 1
    """Variants of each kernel's name: many make the time spread over many kernels."""
    occupancy: float = 62.0
    """In percent."""
    tensor_cores: bool = True
    layout_share: float = 0.0
    """Of the kernels, those that only change a layout."""
    loader_us: float = 150.0
    """How long next() of the loader takes the host, each slot."""
    loader_sync_us: float = 0.0
    """Of it, waiting for the event of a copy, as a loader does before it uses memory of the host again."""
    copy_us: float = 180.0
    pageable: bool = False
    copy_beside: bool = True
    """Whether the copy to the device runs beside kernels, else these wait for it."""
    sync_every: int = 0
    """Kernels after which the host waits for the GPU; 0: never."""
    sync_idle_us: float = 0.0
    """What the host then does before it goes on queuing."""
    exchange_us: float = 0.0
    """Of a step's gradients."""
    exchange_beside: float = 1.0
    """Share of it that runs beside the backward pass."""
    image_size: int = 14
    """Height and width of what operators take, which decides how many bytes they move."""
    allocated_bytes: int = 11 << 30
    reserved_bytes: int = 14 << 30


@dataclass
class _Recording:
    plan: Plan
    events: list[dict[str, Any]] = field(default_factory=list)
    host: float = 4464592240000.25
    """Now, on the host."""
    gpu: float = 0.0
    """When the GPU is free."""
    copies: float = 0.0
    """When the stream of copies is free."""
    number: int = 1000
    launched: int = 0

    def document(self, path: Path) -> dict[str, Any]:
        plan, start = self.plan, self.host
        for step in range(plan.steps):
            self._step(step)
        ended = max(self.host, self.gpu)
        self._span("cuda_runtime", "cudaDeviceSynchronize", self.host, ended - self.host, {"cbid": 165})
        self.events += self._labels()
        self.events.append(
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
            | {"ts": start, "dur": ended - start, "args": {"Op count": 0}}
        )
        document: dict[str, Any] = {
            "schemaVersion": 1,
            "synthetic": SYNTHETIC,
            "deviceProperties": [
                {"id": 0, "name": plan.gpu_name, "totalGlobalMem": 42297524224, "computeMajor": 8, "computeMinor": 0}
                | {"maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536}
                | {"warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 108, "regsPerMultiprocessor": 65536}
            ],
            "cupti_version": 26,
            "cuda_runtime_version": 12080,
            "cuda_driver_version": 12080,
            "trace_id": "5A17E71C000000000000000000000000",
            "profile_memory": 1,
            "record_shapes": 1,
            "with_flops": 1,
            "host_name": HOST,
            "username": USER,
            "INFO": [f"INFO:2026-01-01 00:00:00 {_PID}:{_PID} CuptiActivityProfiler.cpp:241] CUPTI on {HOST}"],
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1790857026000000000,
            "traceName": f"/home/{USER}/runs/{path.name}",
            "traceEvents": self.events,
        }
        if plan.ranks > 1:
            group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": plan.ranks}
            document["distributedInfo"] = {
                "backend": "nccl",
                "rank": plan.rank,
                "world_size": plan.ranks,
                "pg_count": 1,
                "pg_config": [group | {"ranks": list(range(plan.ranks))}],
                "nccl_version": "2.27.5",
            }
        return document

    # --- a step -------------------------------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        plan, began = self.plan, self.host
        for slot in range(plan.slots):
            loading = self.host
            if plan.loader_sync_us:
                self.number += 1
                given = self._ids(cbid=137)
                self._span("cuda_runtime", "cudaEventSynchronize", loading + 1.0, plan.loader_sync_us, given)
            self.host += plan.loader_us
            self._annotation("shardline: loader", loading)
            computing = self.host
            self._copy()
            self._pass(_FORWARD, plan.kernels, _MAIN, step)
            self._pass(_BACKWARD_OPERATORS, 2 * plan.kernels, _BACKWARD, step)
            if slot == plan.slots - 1 and plan.exchange_us:
                self._exchange()
            self._annotation("shardline: slot", computing)
        updating = self.host
        self._operator(*_UPDATE, self.plan.kernel_us, _MAIN)
        self._annotation("Optimizer.step#AdamW.step", updating)
        self._annotation("shardline: update", updating)
        # A host that is far ahead is held back: the queue takes some thousand launches, the probe a step.
        self.host = max(self.host, self.gpu - 2 * plan.kernels * plan.kernel_us)
        self._annotation(f"ProfilerStep#{step + 2}", began)

    def _pass(self, operators: tuple[tuple[str, str], ...], kernels: int, thread: int, step: int) -> None:
        plan = self.plan
        every = round(1 / plan.layout_share) if plan.layout_share else 0
        for index in range(kernels):
            operator, kernel = operators[index % len(operators)]
            if not plan.tensor_cores and ("xmma" in kernel or "16816" in kernel):
                kernel = _NO_TENSOR_CORES
            if every and index % every == 0:
                operator, kernel = _LAYOUT
            self._operator(operator, f"{kernel}{_variant(index, plan.names)}", plan.kernel_us, thread)
            if index % 8 == 0:
                grows = index if thread == _MAIN else 2 * (2 * plan.kernels - index) // 2
                self._memory(plan.allocated_bytes // 2 + plan.allocated_bytes // 2 * min(grows, kernels) // kernels)

    def _operator(self, operator: str, kernel: str, kernel_us: float, thread: int) -> None:
        plan = self.plan
        self.number += 1
        began, correlation = self.host, self.number
        backward = thread == _BACKWARD
        self.host += plan.launch_us
        launch = began + plan.launch_us * 0.4
        self._span("cuda_runtime", "cudaLaunchKernel", launch, plan.launch_us * 0.5, self._ids(cbid=211), thread)
        self._span("cpu_op", operator, began + 0.1, plan.launch_us - 0.2, self._shapes(thread), thread)
        if backward:
            name = f"autograd::engine::evaluate_function: {operator.removeprefix('aten::')}0"
            # The outermost carries an id of its own: a kernel's is that of the innermost.
            given = self._shapes(thread) | {"External id": correlation + 10_000_000}
            self._span("cpu_op", name, began, plan.launch_us, given, thread)
        self.gpu = max(self.gpu, self.host + 2.0)
        self._on_gpu("kernel", kernel, kernel_us, _STREAM, self._occupancy())
        self.launched += 1
        if plan.sync_every and self.launched % plan.sync_every == 0:
            self._wait(thread)

    def _wait(self, thread: int) -> None:
        """A value is read: the host waits until the GPU has worked off its queue."""
        self.number += 1
        began = self.host
        self.host = max(self.host + 3.0, self.gpu + 4.0)
        self._span("cuda_runtime", "cudaStreamSynchronize", began, self.host - began, self._ids(cbid=131), thread)
        self._span("cpu_op", "aten::_local_scalar_dense", began - 0.5, self.host - began + 0.6, self._ids(), thread)
        self.host += self.plan.sync_idle_us

    def _copy(self) -> None:
        plan = self.plan
        self.number += 1
        began = self.host
        self.host += plan.launch_us
        kind = "Memcpy HtoD (Pageable -> Device)" if plan.pageable else "Memcpy HtoD (Pinned -> Device)"
        self._span("cpu_op", "aten::copy_", began, plan.launch_us, self._shapes(_MAIN), _MAIN)
        self._span("cuda_runtime", "cudaMemcpyAsync", began + 1, plan.launch_us - 2, self._ids(cbid=41), _MAIN)
        start = max(self.copies, self.host) if plan.copy_beside else max(self.gpu, self.host)
        self.copies = start + plan.copy_us
        if not plan.copy_beside:
            self.gpu = self.copies
        moved = {"bytes": 38535168, "memory bandwidth (GB/s)": 38535168 / plan.copy_us / 1e3} if plan.copy_us else {}
        self._device_span("gpu_memcpy", kind, start, plan.copy_us, _COPY_STREAM, moved)

    def _exchange(self) -> None:
        plan = self.plan
        self.number += 1
        began = self.host
        self.host += plan.launch_us
        self._span("cpu_op", "record_param_comms", began, plan.launch_us, self._ids(), _BACKWARD)
        self._span("user_annotation", "nccl:all_reduce", began, plan.launch_us, self._ids(), _BACKWARD)
        self._span("cuda_runtime", "cudaLaunchKernelExC", began + 1, 3, self._ids(cbid=430), _BACKWARD)
        start = max(began, self.gpu - plan.exchange_beside * plan.exchange_us)
        described = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "In msg nelems": 25557032,
            "Group size": plan.ranks,
        }
        given = self._occupancy(3.0) | described | {"Process Group Name": "0"}
        self._device_span("kernel", _EXCHANGE, start, plan.exchange_us, _EXCHANGE_STREAM, given)
        # The update needs what was exchanged.
        self.gpu = max(self.gpu, start + plan.exchange_us)

    # --- events -------------------------------------------------------------------------------------------------------

    def _on_gpu(self, category: str, name: str, took: float, stream: int, more: dict[str, Any]) -> None:
        self._device_span(category, name, self.gpu, took, stream, more)
        self.gpu += took

    def _device_span(
        self, category: str, name: str, start: float, took: float, stream: int, more: dict[str, Any]
    ) -> None:
        given = {"External id": self.number, "device": 0, "context": 1, "stream": stream, "correlation": self.number}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": took}
            | {"args": given | more}
        )

    def _span(
        self, category: str, name: str, start: float, took: float, given: dict[str, Any], thread: int = _MAIN
    ) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": _PID, "tid": thread, "ts": start, "dur": took}
            | {"args": given}
        )

    def _annotation(self, name: str, start: float) -> None:
        self.number += 1
        given = {"External id": self.number, "Record function id": 0, "Ev Idx": self.number}
        self._span("user_annotation", name, start, self.host - start, given)

    def _memory(self, allocated: int) -> None:
        given = {"Total Reserved": self.plan.reserved_bytes, "Total Allocated": allocated, "Bytes": 1 << 20}
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": _PID, "tid": _MAIN}
            | {"ts": self.host, "args": given | {"Device Id": 0, "Device Type": 1, "Addr": 140000000000}}
        )

    def _ids(self, **more: Any) -> dict[str, Any]:
        return {"External id": self.number, "correlation": self.number} | more

    def _shapes(self, thread: int) -> dict[str, Any]:
        dims = [[64, 256, self.plan.image_size, self.plan.image_size], [64, 256, 1, 1]]
        given: dict[str, Any] = {"External id": self.number, "Sequence number": self.number, "Record function id": 0}
        given |= {"Input Dims": dims, "Input type": ["c10::Half", "c10::Half"], "Ev Idx": self.number}
        return given | ({"Fwd thread id": 1} if thread == _BACKWARD else {})

    def _occupancy(self, percent: float | None = None) -> dict[str, Any]:
        achieved = self.plan.occupancy if percent is None else percent
        return {
            "queued": 0,
            "registers per thread": 64,
            "shared memory": 16384,
            "blocks per SM": round(achieved / 100 * 16, 3),
            "warps per SM": round(achieved / 100 * 64, 3),
            "grid": [1728, 1, 1],
            "block": [128, 1, 1],
            "est. achieved occupancy %": round(achieved),
        }

    def _labels(self) -> list[dict[str, Any]]:
        named = [
            (_PID, 0, "process_name", {"name": "python"}),
            (_PID, 0, "process_labels", {"labels": f"CPU, {SYNTHETIC}"}),
            (_PID, _MAIN, "thread_name", {"name": f"thread {_MAIN} (pt_main_thread)"}),
            (_PID, _BACKWARD, "thread_name", {"name": f"thread {_BACKWARD} (pt_autograd_0)"}),
            (0, 0, "process_name", {"name": "python"}),
            (0, 0, "process_labels", {"labels": f"GPU 0, {SYNTHETIC}"}),
        ]
        named += [(0, stream, "thread_name", {"name": f"stream {stream} "}) for stream in (7, 21, 40)]
        return [
            {"ph": "M", "name": name, "ts": 4464592240000.25, "pid": pid, "tid": tid, "args": given}
            for pid, tid, name, given in named
        ]


def _variant(index: int, names: int) -> str:
    return f" [variant {index % names}]" if names > 1 else ""
