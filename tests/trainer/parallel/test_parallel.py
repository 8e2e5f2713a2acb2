"""DDP and FSDP2 on real ranks: the scenarios of on_ranks.py, at one, two and three ranks with gloo."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.parallel import on_ranks, runs
from trainer.parallel.process_group import Rank

# What the ordinary suite runs on each number of ranks: a launch costs more than what it runs. Buckets show at three.
ON_THREE = ("resumes", "outcomes", "stopped_evaluation")
ON_TWO = tuple(name for name in on_ranks.SCENARIOS if name not in (*ON_THREE, "on_gpu"))
Found = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def run_ranks(folder: Path, ranks: int, *scenarios: str, **environment: str) -> Found:
    """Run scenarios on ranks of this machine; return what the first rank saved, by scenario."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(ranks):
        with (folder / f"rank-{rank}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.trainer.parallel.on_ranks", str(folder), *scenarios]
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            variables = {**os.environ, **job, **numbers, **environment}
            processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log))
    codes = [process.wait(timeout=280) for process in processes]
    assert codes == [0] * ranks, "".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))
    # Written by the ranks that this test has started.
    return {name: torch.load(folder / f"{name}.pt", weights_only=False) for name in scenarios}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """One rank, in this process."""
    runs.place = tmp_path_factory.mktemp("one")
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = Rank(0, 0, 1, torch.device("cpu"))
    try:
        yield {name: on_ranks.SCENARIOS[name](rank) for name in ("strategies", "outcomes")}
    finally:
        # Else no later test of this process could be a rank.
        dist.destroy_process_group()
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What ranks found in one launch."""
    ranks, scenarios = request.param
    return run_ranks(tmp_path_factory.mktemp("ranks"), ranks, *scenarios)


def launched(ordinary: int, slow: int, scenarios: tuple[str, ...]) -> Any:
    """Run a test on what one number of ranks found, and in the slow tests on what another did."""
    slow_one = pytest.param((slow, scenarios), id=str(slow), marks=pytest.mark.slow)
    return pytest.mark.parametrize(
        "found", [pytest.param((ordinary, scenarios), id=str(ordinary)), slow_one], indirect=True
    )


TWO_AND_THREE, THREE_AND_TWO = launched(2, 3, ON_TWO), launched(3, 2, ON_THREE)
TWO = pytest.mark.parametrize("found", [pytest.param((2, ON_TWO), id="2")], indirect=True)


def differing(one: Tensors, other: Tensors) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def largest_difference(one: Tensors, other: Tensors) -> float:
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


@TWO_AND_THREE
@pytest.mark.parametrize("way", ["ddp vit", "fsdp resnet", "fsdp vit"])
def test_what_is_frozen_keeps_its_bits(found: Found, way: str) -> None:
    one = found["freezes"][way]
    learnt = differing({name: one["begin"][name] for name in one["frozen"]["model"]}, one["frozen"]["model"])
    expected = {"resnet": ["classifier"], "vit": ["classifier", "layernorm", ".2."]}[way.split()[1]]
    assert learnt and all(any(part in name for part in expected) for name in learnt), learnt
    assert all(
        any(part in name for part in expected) for group in ("optimizer", "ema") for name in one["frozen"][group]
    )


@THREE_AND_TWO
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resume_continues_bit_by_bit(found: Found, strategy: str) -> None:
    resumes = found["resumes"]
    assert len(resumes["buckets"].split(",")) >= 3, "the point is several buckets"
    expected, resumed = resumes[strategy], resumes[f"{strategy} resumed"]
    assert expected.keys() == resumed.keys() == {"model", "optimizer", "ema", "guard"}
    assert min(len(expected[group]) for group in ("model", "optimizer", "ema")) >= 20
    for group in expected:
        assert differing(expected[group], resumed[group]) == [], group


@THREE_AND_TWO
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_other_strategy_can_go_on(found: Found, strategy: str) -> None:
    expected, changed = found["resumes"][strategy], found["resumes"][f"{strategy} changed"]
    # Sums over ranks may come in another order: last bits, as with another number of ranks.
    for group in ("model", "optimizer", "ema"):
        assert largest_difference(expected[group], changed[group]) < 1e-4


@pytest.mark.slow
@TWO_AND_THREE
@pytest.mark.parametrize("model", ["resnet", "vit"])
def test_strategies_train_alike_at_any_number_of_ranks(one: Found, found: Found, model: str) -> None:
    """Gradients are averaged over ranks, not summed, and uneven slots neither hang nor count twice."""
    expected = one["strategies"][f"ddp {model}"]["losses"]
    assert len(set(expected)) == 7
    for strategy in ("ddp", "fsdp"):
        losses = found["strategies"][f"{strategy} {model}"]["losses"]
        assert losses == pytest.approx(expected, abs=1e-5), strategy


@TWO
def test_the_log_says_how_the_network_is_gathered(found: Found) -> None:
    assert "fsdp: 6107 parameters over 2 ranks, gathered in 2 blocks" in found["strategies"]["fsdp resnet"]["said"][0]


@TWO_AND_THREE
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_buffers_are_the_first_ranks(found: Found, strategy: str) -> None:
    first, *others = found["buffers"][strategy]
    for other in others:
        assert all(torch.equal(mine, its) for mine, its in zip(first, other, strict=True))


@TWO
def test_a_repeated_slot_leaves_no_trace_in_running_statistics(found: Found) -> None:
    """Of five slots the first rank has two and repeats one in lockstep; with DDP it computes two."""
    ddp, fsdp = found["buffers"]["ddp"][0], found["buffers"]["fsdp"][0]
    counters = [int(buffer) for buffer in fsdp if buffer.ndim == 0]
    assert set(counters) == {2}
    assert all(torch.equal(mine, its) for mine, its in zip(ddp, fsdp, strict=True))


@TWO_AND_THREE
@pytest.mark.parametrize("strategy", ["fsdp"])
def test_training_begins_with_the_first_ranks_weights(found: Found, strategy: str) -> None:
    weights = found["first_weights"]
    assert differing(weights["ddp"], weights[strategy]) == []


@THREE_AND_TWO
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_evaluation_is_the_same_at_any_number_of_ranks(one: Found, found: Found, strategy: str) -> None:
    expected, result = one["outcomes"]["ddp"], found["outcomes"][strategy]
    assert result["evaluation"].samples == expected["evaluation"].samples == 263
    assert result["evaluation"].metrics == expected["evaluation"].metrics
    assert result["evaluation"].loss == pytest.approx(expected["evaluation"].loss, abs=1e-9)
    assert result["confusion"] == expected["confusion"]
    assert sum(samples for _, _, samples in result["confusion"][0]) == 263
    assert result["classes"] == expected["classes"]
    assert result["worst"] == expected["worst"]
    assert result["counts"] == expected["counts"]
    assert result["losses"] == pytest.approx(expected["losses"], abs=1e-5), "training goes on afterwards"


@THREE_AND_TWO
def test_an_evaluation_that_is_stopped_ends_with_the_round(found: Found) -> None:
    """Without forward passes for the rounds that nobody takes any more; ranks have passed equally often."""
    stopped, whole = found["stopped_evaluation"]["stopped"], found["stopped_evaluation"]["whole"]
    ranks = len(whole["passes"])
    assert stopped["rounds"] == whole["rounds"] == 6
    assert stopped["passes"] == [2] * ranks, "cast after the first round, read after the second"
    assert stopped["samples"] == 2 * ranks * 64
    assert whole["passes"] == [6] * ranks, "in the last round the first rank alone has a batch"
    assert whole["samples"] == (5 * ranks + 1) * 64


@TWO_AND_THREE
def test_what_cannot_work_is_refused(found: Found) -> None:
    refusals = found["refusals"]
    if not torch.cuda.is_available():
        for name in ("sync_batch_norm",):
            assert f"parallel.{name} is on, but there is no GPU here" in refusals[name]


@TWO_AND_THREE
@pytest.mark.parametrize("network", ["resnet", "vit", "Plain", "Various", "lazy"])
def test_fsdp_begins_with_the_weights_of_ddp(found: Found, network: str) -> None:
    """Bit for bit, on each rank, with buffers of all kinds."""
    build = found["builds"][network]
    values = build["values"]
    for way in ("fsdp",):
        for rank, given in enumerate(values[way]):
            assert differing(values["ddp"][0], given) == [], (way, rank)
        assert build["names"][way] == build["names"]["ddp"]


@TWO_AND_THREE
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails", "ModelError: .*no images today"),
        ("shapes", "ModelError: .*other_shapes is built differently on different ranks: blocks.0.0.bias"),
        ("drops, fsdp", "ConfigError: .*leaves out parameters at random (.|\n)*parallel.strategy=ddp"),
    ],
)
def test_what_only_the_first_rank_sees_ends_all_of_them(found: Found, name: str, error: str) -> None:
    for said in found["failures"][name]:
        assert re.match(error, said), said


@TWO_AND_THREE
def test_parameters_that_not_every_pass_uses(found: Found) -> None:
    conditional = found["conditional"]
    for name in ("EvaluationHead", "DropsLayers"):
        first, *others = conditional[name]["values"]
        assert all(differing(first, other) == [] for other in others), name
        assert len(set(conditional[name]["losses"])) == 7
    assert conditional["EvaluationHead"]["said"] == [
        "frozen, since the loss depends on them in evaluation alone: second.weight, second.bias"
    ]
    assert conditional["DropsLayers"]["said"] == []


@TWO_AND_THREE
@pytest.mark.parametrize("options", [{}, {"momentum": 0.0}])
def test_sgd_on_a_sharded_network(found: Found, options: dict[str, Any]) -> None:
    ddp, fsdp = (found["sgd"][f"{way} {options}"] for way in ("ddp", "fsdp"))
    assert fsdp["losses"] == pytest.approx(ddp["losses"], abs=1e-5)
    for group in ("model", "optimizer"):
        assert fsdp["state"][group].keys() == ddp["state"][group].keys()
        assert differing(fsdp["state"][group], fsdp["resumed"][group]) == [], group
    # Each rank saves its rows of the momentum; the first rank has the first ones.
    assert bool(fsdp["rows"]) == ("momentum" not in options)
    assert fsdp["rows"].keys() == fsdp["state"]["optimizer"].keys()
    for name, (offset, rows, shape) in fsdp["rows"].items():
        assert (offset, rows) == (0, -(-shape[0] // len(found["builds"]["vit"]["values"]["fsdp"]))), name


@TWO_AND_THREE
def test_resumed_ranks_read_their_rows(found: Found) -> None:
    ddp, fsdp = (found["sgd"][f"{way} {{}}"]["elements read"] for way in ("ddp", "fsdp"))
    ranks = len(fsdp)
    for group in ("model", "optimizer"):
        whole = ddp[0][group]
        assert [read[group] for read in ddp] == [whole] * ranks
        # Buffers are whole, and the last rank has fewer rows where ranks do not divide them.
        assert max(read[group] for read in fsdp) < whole * (1 / ranks + 0.1)
        assert sum(read[group] for read in fsdp) >= whole


@TWO_AND_THREE
def test_ranks_write_one_checkpoint_together_or_none(found: Found) -> None:
    saves = found["saves"]
    ranks = len(saves["steps"])
    parts = [f"model-{rank:05d}-of-{ranks:05d}.safetensors" for rank in range(ranks)]
    assert saves["files"] == [parts[0], "scaler.safetensors", *parts[1:]]
    model = saves["read"]["model"]
    assert torch.equal(model["w"], torch.arange(10.0).reshape(5, 2))
    assert torch.equal(model["one row"], torch.ones(1, 3)) and model["none"].shape == (0, 3)
    # Rank 0's by rule.
    assert model["buffer"].tolist() == [10.0]
    assert saves["steps"] == [(1, 2)] * ranks and saves["folders"] == ["step-00000001.000001"]
    failure = "could not be written (TryAgain: rank 1 could not write its part: TryAgain: rank 1 has no bucket)"
    assert failure in saves["said"][0]


@TWO_AND_THREE
def test_blocks_are_recomputed_on_a_sharded_network(found: Found) -> None:
    none, whole = (found["recomputed"][mode] for mode in ("none", "whole"))
    assert whole["losses"] == none["losses"]
    assert differing(whole["values"], none["values"]) == []


@TWO_AND_THREE
def test_blocks_that_share_a_weight_stay_tied(found: Found) -> None:
    assert found["tied"]["fsdp"] == pytest.approx(found["tied"]["ddp"], abs=1e-5)


@TWO_AND_THREE
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_further_warm_ups_change_no_bit(found: Found, way: str) -> None:
    once, often = found["warm_ups"][f"{way} 0"], found["warm_ups"][f"{way} 2"]
    assert all(differing(once[group], often[group]) == [] for group in once)


@TWO_AND_THREE
@pytest.mark.parametrize("kind", ["bf16 resnet", "bf16 vit", "bf16 Various", "fp16 Various"])
def test_mixed_precision_on_a_sharded_network(found: Found, kind: str) -> None:
    ddp, fsdp = (found["mixed_precision"][f"{kind} {way}"] for way in ("ddp", "fsdp"))
    assert fsdp["losses"] == pytest.approx(ddp["losses"], abs=2e-3)
    assert fsdp["resumed"] == fsdp["losses"][2:]
    lower = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[kind.split()[0]]
    inside = dict(fsdp["inside"])
    assert inside.pop("logits") == "torch.float32"
    # Parameters are gathered in the lower precision but for those of BatchNorm, beside statistics, and scalars.
    for name, dtype in inside.items():
        beside_buffers = name.startswith("norm.") or "normalization." in name or name in (".scale", ".frozen")
        is_buffer = name.endswith(("running_mean", "running_var", "num_batches_tracked", ".drawn", ".mask"))
        assert (dtype == lower) == (not beside_buffers and not is_buffer), name
    assert lower in inside.values()
    # Nothing that training keeps is: parameters, moments, statistics.
    assert fsdp["kept"] == ddp["kept"]
    assert not fsdp["kept"] & {"torch.bfloat16", "torch.float16"}
    first, *others = fsdp["values"]
    assert all(differing(first, other) == [] for other in others)


@pytest.mark.gpu
def test_nccl_on_one_gpu(tmp_path: Path) -> None:
    """SyncBatchNorm among the rest."""
    found = run_ranks(tmp_path, 1, "on_gpu")["on_gpu"]
    assert found.keys() == {"ddp", "fsdp", "sync"}
    check_on_gpu(found)


@pytest.mark.gpu
def test_two_ranks_with_gloo_on_one_gpu(tmp_path: Path) -> None:
    """DDP alone: gloo's reduce_scatter of CUDA tensors, which FSDP needs, ends by SIGSEGV (torch 2.11, H100)."""
    found = run_ranks(tmp_path, 2, "on_gpu", RANKS_ON_ONE_GPU="1")["on_gpu"]
    assert found.keys() == {"ddp"}
    check_on_gpu(found)
    on_cpu = run_ranks(tmp_path / "cpu", 2, "on_gpu", CUDA_VISIBLE_DEVICES="")["on_gpu"]
    assert found["ddp"]["losses"] == pytest.approx(on_cpu["ddp"]["losses"], abs=1e-2)


def check_on_gpu(found: Found) -> None:
    for name, way in found.items():
        # Convolutions choose other algorithms: no bits are promised on a GPU.
        assert way["losses"] == pytest.approx(found["ddp"]["losses"], abs=1e-3), name
        # What is gathered lies on the CPU, what is whole on the GPU.
        on_cpu = [{key: tensor.cpu() for key, tensor in way[kind].items()} for kind in ("model", "reloaded")]
        assert differing(*on_cpu) == [], name
