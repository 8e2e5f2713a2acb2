"""Rules about what steps wait for: data, copies, other ranks, the host for the GPU, checkpoints."""

from __future__ import annotations

from statistics import median

from contracts.artifacts.profile import Severity
from contracts.config import CheckpointSection
from trainer.profiling.case import UNKNOWN, WORTH_SAYING, Case, Gain, Seen, at_most
from trainer.profiling.indicators import own_step_s

# Targets of the documents that this project grew from: GPU busy above 80 %, data time below 20 %, and bad above 50 %.
BUSY_TARGET = 0.80
DATA_TIME, DATA_TIME_BAD = 0.20, 0.50
EXCHANGE, EXCHANGE_BAD = 0.15, 0.40
EXPOSED_COPY, EXPOSED_COPY_BAD = 0.05, 0.20
SYNC, SYNC_BAD = 0.05, 0.20
STRAGGLER, STRAGGLER_BAD = 1.10, 1.50
CHECKPOINT, CHECKPOINT_BAD = 0.02, 0.10
# Operators that read a value back, and so wait for the GPU.
_READS_BACK = ("aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::masked_select")


def data_starved(case: Case) -> Seen | None:
    """R1: steps wait for the input pipeline."""
    given = case.indicators
    data, busy = given.data_time_fraction, given.gpu_busy_fraction
    if data is None or data < DATA_TIME or (busy is not None and busy >= BUSY_TARGET):
        return None
    evidence = [f"data time {data:.0%} of a step (target: below {DATA_TIME:.0%})"]
    if given.copy_wait_fraction:
        evidence.append(f"{given.copy_wait_fraction:.0%} of a step is waiting for the copy to the GPU")
    if busy is not None:
        evidence.append(f"GPU busy {busy:.0%} (target: above {BUSY_TARGET:.0%})")
    alone, best = case.steps_alone, case.best_loader
    if alone is not None:
        evidence.append(f"steps alone: {alone.samples_per_s:.4g} samples/s per rank")
    if best is not None:
        evidence.append(f"loader alone, at its best: {best.samples_per_s:.4g} ({best.num_workers} processes)")
    change, gain, overrides = _feed_faster(case)
    return Seen("Steps wait for data", _severity(data, DATA_TIME_BAD), evidence, change, gain, overrides)


def _feed_faster(case: Case) -> tuple[str, Gain, list[str]]:
    """More loader processes where they were measured to be faster and were not tried end to end; else less work."""
    best, data = case.best_loader, case.config.data
    tried = {point.num_workers for point in case.points if point.samples_per_s}
    if best is not None and best.num_workers not in tried and best.num_workers > case.choice.num_workers:
        gain = case.with_loader(best)
        if gain.factor is not None and gain.factor > WORTH_SAYING:
            override = f"data.num_workers={best.num_workers}"
            return f"set {override} (or auto)", gain, [override]
    steps, overrides = list[str](), list[str]()
    if data.num_workers != "auto" and len({point.num_workers for point in case.loader}) < 2:
        steps.append(f"set data.num_workers=auto: it is pinned at {data.num_workers}, and nothing else was tried")
        overrides.append("data.num_workers=auto")
    images = case.has_images
    steps.append("give each rank more cores (resources.machine, resources.ranks)")
    if images:
        steps.append("store images in the shards no larger than training needs them")
    return "; ".join(steps), case.without_data_time(), overrides


def exposed_exchange(case: Case) -> Seen | None:
    """R6: ranks exchange gradients while nothing computes."""
    share = case.indicators.communication_fraction
    if share is None or share <= EXCHANGE:
        return None
    evidence = [f"exchange between ranks with nothing beside it: {share:.0%} of a step (target: {EXCHANGE:.0%})"]
    evidence += [
        f"rank {summary.rank}: {summary.communication_fraction:.0%} of its step, with waiting for the others; beside "
        f"computing {summary.overlap_fraction or 0.0:.0%}"
        for summary in case.summaries
        if summary.communication_fraction is not None
    ]
    evidence.append(f"once a step, after {case.choice.slots_per_rank} slots of a rank")
    ways = ["take a larger train.global_batch_size, so that there is more to compute for each exchange"]
    ways.append("put the ranks on fewer machines, or on a machine with a faster network")
    gain = at_most(share, "exposed exchange")
    return Seen(
        "Steps wait for the exchange of gradients",
        _severity(share, EXCHANGE_BAD),
        evidence,
        "; ".join(ways),
        gain,
        [f"train.global_batch_size={2 * case.config.train.global_batch_size}"],
    )


def exposed_copies(case: Case) -> Seen | None:
    """R7: copies between host and GPU hold up computing, or come from memory that is not page-locked."""
    given = case.indicators
    exposed, pageable = given.exposed_copy_fraction, given.pageable_copies
    held_up = exposed is not None and exposed > EXPOSED_COPY
    if not held_up and not pageable:
        return None
    evidence = []
    if exposed is not None:
        evidence.append(f"copies with no kernel beside them: {exposed:.0%} of a step (target: {EXPOSED_COPY:.0%})")
    if pageable:
        evidence.append(f"{pageable} copies in a step from memory that is not page-locked, which the host waits for")
    gain = at_most(exposed, "exposed copies") if held_up else UNKNOWN
    return Seen(
        "Copies to the GPU are not hidden behind computing",
        _severity(exposed or 0.0, EXPOSED_COPY_BAD) if held_up else "note",
        evidence,
        "make tensors on the GPU, or in page-locked memory and copy them with non_blocking=True, a slot ahead; "
        "the loader does so already: look for tensors that the model or its loss makes on the CPU",
        gain,
    )


def host_waits(case: Case) -> Seen | None:
    """R8: the host waits for the GPU, and the GPU is idle until the host goes on."""
    given = case.indicators
    share, busy = given.sync_fraction, given.gpu_busy_fraction
    # A GPU that is busy all the same loses nothing: the host waits because it has nothing else to do.
    if share is None or busy is None or share <= SYNC or 1 - busy <= SYNC:
        return None
    evidence = [f"the host waits for the GPU for {share:.0%} of a step (target: {SYNC:.0%})"]
    if given.sync_calls is not None:
        evidence.append(f"{given.sync_calls:.0f} waits in a step")
    evidence.append(f"GPU busy {busy:.0%}: it is idle until the host has queued again")
    evidence += [
        f"{row.name}: {row.calls / summary.steps:.0f} calls in a step"
        for summary in ([case.summary] if case.summary is not None else [])
        for row in summary.operators
        if row.name in _READS_BACK
    ]
    # Not more than the GPU's idle time can be won by never waiting.
    gain = at_most(min(share, 1 - busy), "the GPU idle at such waits")
    return Seen(
        "The host waits for the GPU inside steps",
        _severity(min(share, 1 - busy), SYNC_BAD),
        evidence,
        "keep values on the GPU: no .item(), .cpu(), print or shape that depends on data in the forward pass",
        gain,
    )


def stragglers(case: Case) -> Seen | None:
    """R10: one rank is slower than the others, which wait for it."""
    ratio = case.indicators.slowest_rank_ratio
    if ratio is None or ratio <= STRAGGLER:
        return None
    own = own_step_s(case.summaries)
    evidence = [f"the slowest rank takes {ratio:.2f} times as long as the median (target: {STRAGGLER:.2f})"]
    if len(own) > 1:
        middle = median(own.values())
        slowest = max(own, key=lambda rank: own[rank])
        words = f"rank {slowest} {own[slowest]:.3g} s a step, median {middle:.3g} s"
        evidence.append(f"in the traces, without waiting for the others: {words}")
    hot = "" if case.indicators.gpu_busy_fraction is None else ", and at its GPU's clock and temperature"
    # What the ranks exchange stays as it is.
    exchange = case.indicators.communication_fraction or 0.0
    return Seen(
        "One rank is slower than the others, which wait for it",
        "bad" if ratio >= STRAGGLER_BAD else "warning",
        evidence,
        f"look at what else runs on the slowest rank's machine{hot}; use machines of one kind",
        Gain(1 / ((1 - exchange) / ratio + exchange), "if the slowest rank were as fast as the median one"),
    )


def checkpoint_stalls(case: Case) -> Seen | None:
    """R11: steps stand still for checkpoints."""
    share = case.indicators.checkpoint_stall_fraction
    if share is None or share <= CHECKPOINT:
        return None
    gain = at_most(share, "standing still for checkpoints")
    return Seen(
        "Steps stand still for checkpoints",
        _severity(share, CHECKPOINT_BAD),
        [
            f"{share:.1%} of training's time (target: {CHECKPOINT:.0%})",
            f"computed at {_describe_checkpoints(case.config.checkpoint)}",
        ],
        "write fewer checkpoints (checkpoint.every_s or checkpoint.every_steps)",
        gain,
        _half_as_many(case.config.checkpoint),
    )


def _describe_checkpoints(rules: CheckpointSection) -> str:
    """Say how checkpoints are written: it is in no fingerprint of a profile, so a reused report may be of others."""
    given = [f"checkpoint.{name}={value:g}" for name in ("every_steps", "every_s") if (value := getattr(rules, name))]
    if not given:
        given = [f"a checkpoint every {rules.interval_s:g} s"]
    return ", ".join(given)


def _half_as_many(rules: CheckpointSection) -> list[str]:
    given = {name: getattr(rules, name) for name in ("every_steps", "every_s")}
    return [f"checkpoint.{name}={2 * value:g}" for name, value in given.items() if value]


def _severity(value: float, bad: float) -> Severity:
    return "bad" if value >= bad else "warning"
