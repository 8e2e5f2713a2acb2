"""Each option of the loop: what it does, and that training that is killed with it ends in the same bits."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import ResourcesSection
from contracts.errors import DataError, Preempted
from tests.conftest import small_config
from tests.trainer.one_rank import Crash, logs, make_training, newest, train
from trainer.checkpoint.loading import load_model_state
from trainer.parallel.process_group import Rank
from trainer.report.gauges import OutOfMemory, out_of_memory_explained
from trainer.step import Update
from trainer.supervise.limits import Budget
from trainer.supervise.stop import StopCause
from trainer.supervise.vote import StopAgreement

FROZEN = {**small_config()["model"], "freeze": ["*resnet*"]}
EXPLODING = {"architecture": "models_for_tests:exploding", "arguments": {}}


def config(train: dict[str, Any] | None = None, **sections: dict[str, Any]) -> dict[str, Any]:
    """5 steps an epoch, the last of half a batch; a checkpoint after steps 3, 5, 6, 9 and 10."""
    return small_config(train=train or {}, **{"checkpoint": {"every_steps": 3}, **sections})


# All that a step keeps for the next one; what a factor or a schedule does is in test_optim.py and test_step.py.
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd, channels last, bf16": config(
        {"optimizer": "sgd", "momentum": 0.8, "weight_decay": 0.1, "channels_last": True, "precision": "bf16"}
    ),
    "fp16, average, recomputed": config(
        {"precision": "fp16", "clip_grad_norm": 1.0, "ema_decay": 0.9, "activation_checkpointing": "whole"}
    ),
    "skips": config({"precision": "fp16", "optimizer": "sgd", "ema_decay": 0.9}, model=EXPLODING),
    "frozen, few steps": config({"max_steps": 8, "learning_rates": {"*classifier*": 3.0}}, model=FROZEN),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_training_that_is_killed_ends_in_the_same_bits(
    rank: Rank, small_shards: str, tmp_path: Path, name: str
) -> None:
    whole = train(rank, tmp_path / "whole", small_shards, OPTIONS[name])
    for attempt, steps in (("a", 4), ("b", 2)):
        # Killed at steps 5 and 6: resumes from 3 and from 5.
        with pytest.raises(Crash):
            train(rank, tmp_path / "killed", small_shards, OPTIONS[name], attempt, crash_at=steps)
    killed = train(rank, tmp_path / "killed", small_shards, OPTIONS[name], "c")
    assert "continues from" in logs(tmp_path / "killed", "c")
    assert "not bit-identical" not in logs(tmp_path / "killed", "c")
    check_equal(newest(tmp_path / "whole"), newest(tmp_path / "killed"))
    check_equal(whole, killed)
    if name == "frozen, few steps":
        assert (whole.ended_by, newest(tmp_path / "whole").step) == ("max_steps", 8)
        assert "validation_accuracy" in newest(tmp_path / "whole").metrics
    if name == "fp16, average, recomputed":
        check_average(tmp_path / "whole" / "out", whole)


def check_average(folder: Path, result: CheckpointManifest) -> None:
    """The average is what is evaluated and published; buffers are the network's own."""
    assert result.evaluated == "ema"
    weights = load_model_state(storage.normalise(folder), result)
    best = storage.normalise(next((folder / "checkpoints").glob(f"step-{result.step:08d}*")))
    raw = load_model_state(best, CheckpointManifest.load(best))
    assert weights.keys() == raw.keys()
    differ = {name for name in weights if not torch.equal(weights[name], raw[name])}
    assert differ and not any("running" in name or "num_batches" in name for name in differ)


def check_equal(one: CheckpointManifest, other: CheckpointManifest) -> None:
    # Files hold all tensors: parameters, buffers, optimizer, average, scale and counts.
    assert [entry.crc32c for entry in one.files] == [entry.crc32c for entry in other.files]
    # The attempt is in the name of their folder; what they say counts.
    for name in ("evaluation", "predictions"):
        checksums = {entry.crc32c if (entry := getattr(document, name)) else None for document in (one, other)}
        assert len(checksums) == 1
    left_out = {"files", "spent_s", "environment", "evaluation", "predictions", "attempt", "finished_at"}
    assert one.model_dump(exclude=left_out) == other.model_dump(exclude=left_out)


def test_skipped_steps_are_counted_and_change_nothing(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    """Cursor, schedule and loss scale go on; parameters, optimizer and average stay."""
    training = make_training(rank, tmp_path, small_shards, OPTIONS["skips"])
    update, seen = training.stepper.update, []

    def watched(step: int, rate: float) -> Update:
        before = snapshot()
        result = update(step, rate)
        assert all(torch.equal(before[key], value) for key, value in snapshot().items()) == bool(result.skipped)
        seen.append(bool(result.skipped))
        return result

    def snapshot() -> dict[str, torch.Tensor]:
        groups = training.stepper.state()
        return {f"{group}/{n}": t.clone() for group in ("model", "optimizer", "ema") for n, t in groups[group].items()}

    training.stepper.update = watched  # type: ignore[method-assign]
    training.run()
    assert len(seen) == 10 and 0 < sum(seen) < 10
    last = newest(tmp_path)
    assert (last.step, last.position, last.skipped_steps) == (10, 140, sum(seen))
    assert math.log2(float(training.stepper.state()["scaler"]["scale"])) == 16 - sum(seen)


def test_a_gradient_that_is_not_finite_stops_training_where_it_is_set_so(
    rank: Rank, small_shards: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"at step (\d+)") as caught:
        train(rank, tmp_path, small_shards, config(model=EXPLODING))
    assert caught.value.exit_code == 2
    # No checkpoint lies beyond it: a resume meets it again.
    step = int(str(caught.value).split("at step ")[1].split()[0])
    done = list((tmp_path / "out/checkpoints").glob("*/manifest.json"))
    assert all(CheckpointManifest.load(storage.normalise(path)).step < step for path in done)


def test_a_network_that_learns_nothing_any_more_ends_training(
    rank: Rank, small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.model.numerics.MOST_SKIPS_IN_A_ROW", 7)
    always = config({"precision": "fp16"}, model={**EXPLODING, "arguments": {"share": 1.1}})
    with pytest.raises(DataError, match="7 steps in a row, up to step 7"):
        train(rank, tmp_path, small_shards, always)


def test_a_budget_ends_training_with_its_best_checkpoint(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    resources = {"max_cost_usd": 1e-9, "price_usd_per_h": 3}
    result = train(rank, tmp_path, small_shards, config({"epochs": 30}, resources=resources))
    # Seen at the first report, the end of epoch 1.
    assert (result.finished, result.ended_by, result.step) == (True, "max_cost_usd", 5)
    assert result.spent_s > 0


def test_a_budget_counts_from_the_launchers_start_over_all_starts_of_the_ranks(tmp_path: Path) -> None:
    limits = ResourcesSection(max_hours=1)
    given: dict[str, Any] = {"folder": tmp_path / "a", "began_at": time.monotonic() - 1800}
    Budget.of_attempt(limits, recorded_s=600, is_first=False, **given)
    assert not (tmp_path / "a").exists(), "the first rank's"
    first = Budget.of_attempt(limits, recorded_s=600, is_first=True, **given)
    assert first.spent_s() == pytest.approx(2400, abs=60)
    # From a checkpoint of the same attempt, whose time is counted once.
    second = Budget.of_attempt(limits, recorded_s=2000, is_first=True, **given)
    assert second.spent_s() == pytest.approx(2400, abs=60)
    assert second.remaining_s() == pytest.approx(1200, abs=60)
    assert (second.exceeded_by(3599), second.exceeded_by(3600)) == ("", "max_hours")


def test_out_of_memory_is_told_with_its_step_and_what_to_lower(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    values = config(model={"architecture": "models_for_tests:hungry", "arguments": {}})
    training = make_training(rank, tmp_path, small_shards, values)
    explained = out_of_memory_explained(training.config, rank, training.ledger.sections, lambda: False)
    with pytest.raises(OutOfMemory, match="out of memory in section step at step 0") as caught, explained:
        training.run()
    # Twice at a step is final (trainer/launch/attempts.py).
    assert caught.value.step == 0
    for words in ("lower parallel.slot_size (4)", "activation_checkpointing=whole", "parallel.strategy=fsdp"):
        assert words in str(caught.value)


# It learns nothing, so training ends after the third evaluation.
STOPS = config(
    {
        "epochs": 6,
        "learning_rate": 1e-20,
        "early_stopping": {"metric": "validation_accuracy", "patience": 2},
    },
    model={"architecture": "models_for_tests:without_batchnorm", "arguments": {}},
)


@pytest.mark.parametrize("evaluates", [True, False])
def test_early_stopping_ends_training_also_where_it_resumes_after_its_last_step(
    rank: Rank, small_shards: str, tmp_path: Path, evaluates: bool
) -> None:
    """Killed between the last checkpoint and the end; or told to stop before the evaluation that would end training."""
    whole = train(rank, tmp_path / "whole", small_shards, STOPS)
    assert (whole.finished, whole.ended_by, newest(tmp_path / "whole").epoch) == (True, "early_stopping", 3)
    assert "validation_accuracy was not better" in logs(tmp_path / "whole")
    training = make_training(rank, tmp_path / "cut", small_shards, STOPS)
    if evaluates:
        training.run()
    else:
        vote = training.vote

        def told() -> StopAgreement | None:
            if training.step == 15:
                vote.agreed = StopAgreement(StopCause.SIGTERM, 0)
            return vote.agreed

        vote.step_done = told  # type: ignore[method-assign]
        with pytest.raises(Preempted):
            training.run()
    assert newest(tmp_path / "cut").evaluation_due == (not evaluates)
    cut = train(rank, tmp_path / "cut", small_shards, STOPS, "b", crash_at=0)
    assert (cut.ended_by, cut.step) == ("early_stopping", whole.step)
    check_equal(newest(tmp_path / "whole"), newest(tmp_path / "cut"))


# torch warns about its own code when the compiler is imported, and DDP about the memory layout of compiled gradients.
TORCHS_OWN = "ignore:(`torch.jit.script_method` is deprecated|Grad strides do not match)"


@pytest.mark.slow
@pytest.mark.filterwarnings(TORCHS_OWN)
def test_a_compiled_network_is_killed_and_ends_in_the_same_bits(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    """Slots of two sizes, each compiled; the second attempt meets them in another order."""
    compiled = config({"compile": "on", "global_batch_size": 18})
    train(rank, tmp_path / "whole", small_shards, compiled)
    with pytest.raises(Crash):
        train(rank, tmp_path / "killed", small_shards, compiled, crash_at=4)
    train(rank, tmp_path / "killed", small_shards, compiled, "b")
    check_equal(newest(tmp_path / "whole"), newest(tmp_path / "killed"))
    assert newest(tmp_path / "whole").numerics["compile"] == "true"
