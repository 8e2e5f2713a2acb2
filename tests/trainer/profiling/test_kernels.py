"""What a kernel does, by its name and the operator that launched it."""

import pytest

from trainer.profiling.kernels import category_of, copies_by_name, kernel_shares
from trainer.profiling.kineto import Event


def kernel(name: str, operator: int = 0, took_us: float = 1.0) -> Event:
    return Event(name, "kernel", 0.0, took_us, "0", "7", {"External id": operator, "stream": 7})


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymDevArgs)",
        "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)",
        "ncclSymDevKernel_ReduceScatter_LD_sum_bf16(ncclSymDevArgs)",
    ],
)
def test_every_kernel_of_nccl_is_communication(name: str) -> None:
    assert category_of(kernel(name)) == "communication"


def test_what_only_sounds_like_nccl_computes() -> None:
    assert category_of(kernel("void at::native::vectorized_elementwise_kernel<4, ncclRedOp>(int)")) == "compute"


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        # Fused casts and clones beside something that computes.
        ("triton_poi_fused__to_copy_add_relu_3", False),
        ("triton_poi_fused_add_clone_native_layer_norm_0", False),
        ("triton_red_fused__to_copy_native_layer_norm_backward_sum_12", False),
        ("triton_poi_fused_convolution_permute_relu_7", False),
        # Nothing but a copy.
        ("triton_poi_fused__to_copy_0", True),
        ("triton_poi_fused_clone_permute_4", True),
        ("triton_poi_fused__unsafe_view_clone_5", True),
        ("triton_poi_fused_cat_11", True),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, 0>(cudnn::ops)", True),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)", True),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", False),
    ],
)
def test_a_compiled_kernel_copies_where_it_does_nothing_else(name: str, copies: bool) -> None:
    assert copies_by_name(name) is copies
    found = kernel_shares([kernel(name)], 1, {})
    assert found["copy_kernel_fraction"] == float(copies)


def test_a_compiled_kernel_is_not_judged_by_the_operator_around_it() -> None:
    around = {"5": "aten::_to_copy"}
    assert kernel_shares([kernel("triton_poi_fused__to_copy_add_3", 5)], 1, around)["copy_kernel_fraction"] == 0
    assert kernel_shares([kernel("void at::native::something<int>()", 5)], 1, around)["copy_kernel_fraction"] == 1
