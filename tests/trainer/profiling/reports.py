"""Hand-made reports and summaries for tests of what shows them: a GPU that waits for its data, and a plain CPU.

The summaries are synthetic: no GPU has run these kernels.
"""

from __future__ import annotations

from contracts.artifacts import (
    ComputePoint,
    Finding,
    Flags,
    Indicators,
    LoaderPoint,
    MemoryModel,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    Recommendation,
    TrainingEstimate,
)
from contracts.artifacts.trace import KernelRow, Lane, MemorySample, OperatorRow, Span, TraceSummary

BF16 = Flags(precision="bf16", channels_last=True)
GPU = "Synthetic GPU"
SLOT_SIZES = (16, 32, 64, 128)
NUM_WORKERS = (0, 1, 2, 4, 8)


def gpu_points() -> list[ProfilePoint]:
    """Slot sizes by loader processes: the loader is the bottleneck until 4 processes; 256 does not fit."""
    points = []
    for slot_size in SLOT_SIZES:
        for num_workers in NUM_WORKERS:
            rate = min(900.0 * slot_size / (slot_size + 24), 60.0 + 170.0 * num_workers)
            measured = num_workers >= 2 and slot_size >= 32
            points.append(
                ProfilePoint(
                    slot_size=slot_size,
                    slots_per_rank=512 // slot_size,
                    num_workers=num_workers,
                    threads=4,
                    flags=BF16,
                    outcome="measured" if measured else "predicted",
                    predicted_samples_per_s=rate,
                    samples_per_s=rate * (0.94 + 0.02 * (slot_size % 5)) if measured else None,
                    samples_per_s_min=rate * 0.9 if measured else None,
                    samples_per_s_max=rate * 1.05 if measured else None,
                    windows=5 if measured else 0,
                    data_time_fraction=max(0.02, 0.7 - 0.16 * num_workers) if measured else None,
                    usd_per_million_samples=1e6 / rate / 3600 * 2.5 if measured else None,
                )
            )
    failed = ProfilePoint(
        slot_size=256, slots_per_rank=2, num_workers=4, threads=4, flags=BF16, outcome="out of memory"
    )
    points.append(failed.model_copy(update={"reason": "CUDA out of memory. Tried to allocate 2.00 GiB"}))
    hung = failed.model_copy(update={"num_workers": 8, "outcome": "hung", "reason": "no answer within 120 s"})
    return [*points, hung]


def gpu_report() -> ProfileReport:
    """A report with everything in it: findings, recommendations, an estimate, warnings, failed points."""
    points = gpu_points()
    best = next(p for p in points if p.slot_size == 64 and p.num_workers == 4)
    shares = ("slot_size", "slots_per_rank", "num_workers", "prefetch_factor", "threads", "flags")
    return ProfileReport(
        fingerprint="0123456789abcdef",
        made_from={"model": "resnet"},
        model_fingerprint="m",
        shards_fingerprint="s",
        hardware={"cores": "16", "cpu": "a CPU", "gpus": f"{GPU}, {GPU}"},
        torch_version="2.13.0",
        ranks=2,
        threads_per_rank=4,
        global_batch_size=1024,
        points=points,
        choice=ProfileChoice(
            **{name: getattr(best, name) for name in shares},
            reason="the fewest loader processes and the smallest slot within 3 % of the best (128 samples a slot, 8 "
            "processes: 727 samples/s)",
        ),
        method="sweep",
        wall_s=212.5,
        loader=[
            LoaderPoint(
                num_workers=n,
                prefetch_factor=4,
                slot_size=32,
                samples_per_s=60.0 + 170.0 * n,
                samples_per_s_min=55.0 + 160 * n,
                samples_per_s_max=64.0 + 180 * n,
                cpu_s_per_sample=0.0055,
            )
            for n in NUM_WORKERS
        ],
        compute=[
            ComputePoint(
                slot_size=s,
                threads=4,
                flags=BF16,
                slot_s=(s + 24) / 900,
                last_slot_s=(s + 24) / 900 + 0.011,
                samples_per_s=900.0 * s / (s + 24),
                memory_bytes=2**30 + s * 90 * 2**20,
                cpu_s_per_sample=0.0003,
            )
            for s in SLOT_SIZES
        ]
        + [ComputePoint(slot_size=256, threads=4, flags=BF16, outcome="out of memory", reason="CUDA out of memory")],
        memory=[
            MemoryModel(
                flags=BF16,
                base_bytes=2**30,
                bytes_per_sample=90 * 2**20,
                limit_bytes=15 * 2**30,
                largest_slot_size=144,
            )
        ],
        overlap=0.83,
        predictor_error=0.062,
        recommendations=[
            Recommendation(
                setting="train.compile=true",
                gain=1.14,
                evidence="steps alone at slot size 64: 745 against 654 samples/s",
            )
        ],
        indicators=Indicators(
            step_s=0.914,
            data_time_fraction=0.31,
            copy_wait_fraction=0.04,
            gpu_busy_fraction=0.58,
            occupancy_fraction=0.41,
            mfu=0.183,
            flops_per_sample=12.3e9,
            peak_flops=65e12,
            communication_fraction=0.07,
            exposed_copy_fraction=0.06,
            pageable_copies=2,
            sync_fraction=0.013,
            sync_calls=3.5,
            kernels_per_step=1480,
            mean_kernel_us=212.4,
            top10_kernel_fraction=0.61,
            copy_kernel_fraction=0.085,
            memory_peak_bytes=7 * 2**30,
            memory_reserved_bytes=8 * 2**30,
            memory_limit_bytes=15 * 2**30,
            fragmentation_fraction=0.125,
            allocation_retries=0,
            slowest_rank_ratio=1.04,
            nvml_utilisation_fraction=0.97,
            profiler_ratio=1.19,
        ),
        findings=[
            Finding(
                rule="R1",
                severity="bad",
                title="The GPU waits for data",
                evidence=["data time 31.0 % of a step (target: below 20 %)", "GPU busy 58.0 % (target: above 80 %)"],
                why="a GPU that waits computes nothing",
                command="shardline profile CONFIG data.num_workers=auto",
                change="Raise data.num_workers to 8, or decode smaller images: data.cache=decoded",
                gain=1.42,
                gain_from="the loader alone at 8 processes over that at 4",
            ),
            Finding(
                rule="R7",
                severity="warning",
                title="Copies to the device are not hidden",
                evidence=["exposed copies 6.0 % of a step", "2 copies a step from pageable memory"],
                change="Return tensors from the loader that are pinned",
            ),
            Finding(
                rule="R9",
                severity="note",
                title="nvidia-smi shows 97 %, the model uses 18.3 % of the GPU",
                evidence=["MFU 18.3 %", "utilisation by NVML 97 %"],
                change="Judge by GPU busy and MFU",
            ),
        ],
        estimate=TrainingEstimate(samples=38_435_010, hours=7.3, usd=18.2),
        warnings=["the loader at 8 processes was measured in 2 windows only: the budget was out"],
    )


def gpu_summary(rank: int = 0, *, kernels: int = 30, spans: int = 900) -> TraceSummary:
    """What a trace of a GPU that waits for its data says: all five views have something to show."""
    step_s = 0.92
    names = (
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_kernel",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "Memcpy HtoD (Pageable -> Device)",
    )
    kinds = ("compute", "compute", "compute", "communication", "copy")
    rows = tuple(
        KernelRow(
            name=names[i % 5] + ("" if i < 5 else f" #{i}"),
            category=kinds[i % 5],
            calls=4 * (i + 3),
            total_s=0.9 / (i + 1.5),
            occupancy_fraction=None if i % 5 == 4 else 0.25 + 0.02 * (i % 20),
            blocks_per_sm=None if i % 5 == 4 else 1.5 * (i + 1),
        )
        for i in range(kernels)
    )
    stream, host, at = [], [Span("ProfilerStep#12", "step", 0.0, step_s)], 0.05
    host.append(Span("shardline: loader", "loader", 0.0, 0.2))
    host.append(Span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "wait", 0.002, 0.19))
    for i in range(spans):
        length = step_s * 0.58 / spans * (0.3 + (i * 7 % 13) / 9)
        at = max(at, 0.2 + i * 0.68 / spans)
        stream.append(Span(names[i % 3], "kernel", at, length))
        host.append(
            Span(("aten::convolution", "aten::add_", "aten::batch_norm")[i % 3], "operator", at - 0.02, length * 0.8)
        )
        host.append(Span("aten::empty", "operator", at - 0.02 + length * 0.1, length * 0.3))
        at += length
    host.append(Span("cudaStreamSynchronize", "wait", 0.89, 0.012))
    return TraceSummary(
        rank=rank,
        device="gpu",
        gpu_name=GPU,
        steps=4,
        step_s=step_s,
        breakdown_s={"kernels": 0.53, "communication": 0.064, "copies": 0.055, "loader": 0.2, "other": 0.071},
        gpu_busy_fraction=0.58,
        occupancy_fraction=0.41,
        communication_fraction=0.07,
        exposed_copy_fraction=0.06,
        pageable_copies=2,
        sync_fraction=0.013,
        sync_calls=3.5,
        kernels_per_step=1480,
        mean_kernel_us=212.4,
        top10_kernel_fraction=0.61,
        copy_kernel_fraction=0.085,
        tensor_core_fraction=0.44,
        kernels=rows,
        operators=tuple(
            OperatorRow(name, 40 * (i + 1), 0.4 / (i + 1), 0.1 / (i + 1), 1.8 / (i + 1))
            for i, name in enumerate(
                ("aten::cudnn_convolution", "aten::addmm", "aten::cudnn_batch_norm", "aten::copy_")
            )
        ),
        memory=tuple(
            MemorySample(0.004 * i, 2**30 + 6 * 2**30 * (120 - abs(i % 240 - 120)) // 120, 8 * 2**30)
            for i in range(900)
        ),
        lanes=(
            Lane("thread 1 (python)", tuple(host)),
            Lane(
                "thread 2 (backward)",
                tuple(Span("ConvolutionBackward0", "operator", 0.5 + k * 0.05, 0.04) for k in range(7)),
            ),
            Lane("stream 7", tuple(stream)),
            Lane("stream 20 (copies)", (Span("Memcpy HtoD (Pageable -> Device)", "copy", 0.2, 0.05),)),
            Lane("stream 24 (nccl)", tuple(Span(names[3], "communication", 0.55 + k * 0.08, 0.07) for k in range(4))),
        ),
    )


def cpu_report() -> ProfileReport:
    """A report of a machine without a GPU, one rank, full grid, nothing found."""
    points = [
        ProfilePoint(slot_size=s, slots_per_rank=64 // s, num_workers=w, samples_per_s=400.0 + s - 90 * w, windows=3)
        for s in (16, 32)
        for w in (0, 1)
    ]
    return ProfileReport(
        fingerprint="fedcba9876543210",
        made_from={"model": "resnet"},
        model_fingerprint="m",
        shards_fingerprint="s",
        hardware={"cores": "2", "cpu": "a CPU", "gpus": "none"},
        torch_version="2.13.0+cpu",
        ranks=1,
        threads_per_rank=1,
        global_batch_size=64,
        points=points,
        choice=ProfileChoice(slot_size=16, slots_per_rank=4, num_workers=0, reason="within 3 % of it", clear=False),
        method="grid",
        wall_s=19.8,
        indicators=Indicators(
            step_s=0.154, data_time_fraction=0.12, flops_per_sample=5.1e8, copy_kernel_fraction=0.03,
            memory_peak_bytes=412 * 2**20, profiler_ratio=1.2,
        ),
    )  # fmt: skip


def cpu_summary(rank: int = 0) -> TraceSummary:
    """What a trace without a GPU says."""
    spans = [
        Span("ProfilerStep#3", "step", 1.0, 0.15),
        Span("shardline: loader", "loader", 1.0, 0.02),
        Span("shardline: slot", "annotation", 1.02, 0.12),
        Span("aten::conv2d", "operator", 1.025, 0.03),
        Span("aten::convolution", "operator", 1.026, 0.028),
        Span("Optimizer.step#AdamW.step", "operator", 1.141, 0.008),
    ]
    backward = [Span("autograd::engine::evaluate_function: ConvolutionBackward0", "operator", 1.06, 0.07)]
    return TraceSummary(
        rank=rank,
        device="cpu",
        gpu_name=None,
        steps=4,
        step_s=0.15,
        breakdown_s={"loader": 0.02, "forward": 0.04, "backward": 0.075, "optimizer": 0.008, "other": 0.007},
        copy_kernel_fraction=0.03,
        operators=(
            OperatorRow("aten::mkldnn_convolution", 40, 0.2, 0.19),
            OperatorRow("aten::batch_norm", 40, 0.04, 0.01),
        ),
        memory=tuple(MemorySample(0.9 + 0.01 * i, (100 + 30 * (i % 10)) * 2**20) for i in range(40)),
        lanes=(Lane("thread 100", tuple(spans)), Lane("thread 101 (backward)", tuple(backward))),
    )
