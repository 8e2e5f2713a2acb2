"""Hand-made profile reports and trace summaries: a GPU that waits for its data, and a CPU. No GPU ran these kernels."""

from __future__ import annotations

from contracts.artifacts import (
    ComputePoint,
    Finding,
    Indicators,
    KernelRow,
    LoaderPoint,
    MemorySample,
    OperatorRow,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    TraceSummary,
    TrainingEstimate,
)

GPU = "Synthetic GPU"
SLOT_SIZES = (16, 32, 64, 128)
NUM_WORKERS = (0, 1, 2, 4, 8)


def gpu_points() -> list[ProfilePoint]:
    """Finalists of a search: the loader is the bottleneck until 4 workers; 256 does not fit."""
    points = []
    for slot_size, num_workers in ((64, 4), (64, 8), (32, 4), (32, 2)):
        rate = min(900.0 * slot_size / (slot_size + 24), 60.0 + 170.0 * num_workers)
        points.append(
            ProfilePoint(
                slot_size=slot_size,
                slots_per_rank=512 // slot_size,
                num_workers=num_workers,
                samples_per_s=rate,
                samples_per_s_min=rate * 0.9,
                samples_per_s_max=rate * 1.05,
                windows=3,
                data_time_fraction=max(0.02, 0.7 - 0.16 * num_workers),
                usd_per_million_samples=1e6 / rate / 3600 * 2.5,
            )
        )
    failed = ProfilePoint(slot_size=256, slots_per_rank=2, num_workers=4, outcome="out of memory")
    points.append(failed.model_copy(update={"reason": "CUDA out of memory. Tried to allocate 2.00 GiB"}))
    hung = failed.model_copy(update={"num_workers": 8, "outcome": "timeout", "reason": "took longer than 120 s"})
    return [*points, hung]


def gpu_report() -> ProfileReport:
    """A report with everything in it: findings, an estimate, warnings, failed points."""
    points = gpu_points()
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
        choice=ProfileChoice(**dict(points[0].settings()), reason="fewest workers within 3 % of the fastest"),
        method="sweep",
        wall_s=212.5,
        loader=[
            LoaderPoint(num_workers=n, slot_size=32, samples_per_s=60.0 + 170.0 * n, samples_per_s_min=55.0 + 160 * n)
            for n in NUM_WORKERS
        ],
        compute=[
            ComputePoint(
                slot_size=s,
                slot_s=(s + 24) / 900,
                last_slot_s=(s + 24) / 900 + 0.011,
                samples_per_s=900.0 * s / (s + 24),
                memory_bytes=2**30 + s * 90 * 2**20,
            )
            for s in SLOT_SIZES
        ]
        + [ComputePoint(slot_size=256, outcome="out of memory", reason="CUDA out of memory")],
        indicators=Indicators(
            step_s=0.914,
            data_time_fraction=0.31,
            gpu_busy_fraction=0.58,
            mfu=0.183,
            flops_per_sample=12.3e9,
            peak_flops=65e12,
            communication_fraction=0.07,
            exposed_copy_fraction=0.06,
            pageable_copies=2,
            copy_kernel_fraction=0.085,
            tensor_core_fraction=0.44,
            kernels_per_step=1480,
            mean_kernel_us=212.4,
            memory_peak_bytes=7 * 2**30,
            memory_limit_bytes=15 * 2**30,
        ),
        findings=[
            Finding(
                rule="R1",
                title="Steps wait for data",
                evidence=["data time 31 % of a step (target: below 20 %)", "GPU busy 58 % (target: above 80 %)"],
                why="nothing is computed while a step waits for its samples",
                change="give each rank more cores (resources.machine, resources.ranks)",
                time_share=0.31,
            ),
            Finding(rule="R5", title="Memory is nearly full", evidence=["93 % of 15 GB"], change="use smaller slots"),
        ],
        estimate=TrainingEstimate(samples=38_435_010, hours=7.3, usd=18.2),
        warnings=["the loader at 8 workers was not measured: the budget ended"],
    )


def gpu_summary(rank: int = 0) -> TraceSummary:
    """Trace of a GPU that waits for its data."""
    names = (
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_kernel",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "Memcpy HtoD (Pageable -> Device)",
    )
    categories = ("compute", "compute", "communication", "copy")
    operators = ("aten::cudnn_convolution", "aten::addmm", "aten::cudnn_batch_norm", "aten::copy_")
    return TraceSummary(
        rank=rank,
        device="gpu",
        steps=4,
        step_s=0.92,
        breakdown_s={"kernels": 0.53, "communication": 0.064, "copies": 0.055, "loader": 0.2, "other": 0.071},
        gpu_busy_fraction=0.58,
        exchanges_s=(0.064,) * 4,
        exposed_copy_fraction=0.06,
        pageable_copies=2,
        copy_kernel_fraction=0.085,
        tensor_core_fraction=0.44,
        kernels_per_step=1480,
        mean_kernel_us=212.4,
        kernels=tuple(
            KernelRow(name=name, category=category, calls=4 * (place + 3), total_s=0.9 / (place + 1.5))  # type: ignore[arg-type]
            for place, (name, category) in enumerate(zip(names, categories, strict=True))
        ),
        operators=tuple(
            OperatorRow(name=name, calls=40 * (place + 1), self_s=0.1 / (place + 1), device_s=1.8 / (place + 1))
            for place, name in enumerate(operators)
        ),
        memory=tuple(
            MemorySample(at_s=0.004 * i, allocated_bytes=2**30 + 6 * 2**30 * (120 - abs(i % 240 - 120)) // 120)
            for i in range(400)
        ),
    )
