"""Flags that the configuration sets: measured beside the choice in pairs, and recommended where they are faster.

The pairs are end to end, on the cut that was chosen: a flag that makes steps faster gains little where they wait for
data.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from contracts.artifacts import Flags, Recommendation, Settings
from trainer.profiling.ledger import ROUNDS, Ledger
from trainer.profiling.measure import Failed
from trainer.profiling.pairs import FINALISTS, TOLERANCE, Contender, ratio
from trainer.profiling.parts import Parts

# A flag is recommended where it beats the choice by this share in the median of their pairs: less may be noise.
WORTH_A_WORD = 0.1


def recommend(chosen: Settings, parts: Parts, ledger: Ledger) -> list[Recommendation]:
    """Measure each flag that may not be chosen beside the choice; return those that are worth a word.

    It comes last, so the rest of the budget is its own.

    Args:
        chosen: What was chosen, with flags that may be.
        parts: What was measured apart: whether steps matter, and what fits.
        ledger: What measures.
    """
    found: list[Recommendation] = []
    parts.share = 1.0
    tried = list(_flags_beside(chosen, parts))
    while tried:
        turn, tried = tried[: FINALISTS - 1], tried[FINALISTS - 1 :]
        if not ledger.allows("turn", parts=1 + len(turn)):
            break
        usual, *others = ledger.beside([chosen, *(settings for _, settings in turn)], rounds=ROUNDS)
        for (setting, settings), rates in zip(turn, others, strict=True):
            if isinstance(usual, Failed) or isinstance(rates, Failed):
                continue
            first = Contender(settings, dict(enumerate(rates)))
            paired = ratio(first, Contender(chosen, dict(enumerate(usual))))
            if paired is not None and paired.middle > 1 + WORTH_A_WORD and paired.low > 1:
                evidence = (
                    f"end to end at slot size {settings.slot_size}, {len(rates)} windows beside the choice: "
                    f"{median(rates):.0f} samples/s, {median(usual):.0f} without; 95 % confidence limits of the ratio "
                    f"{paired.low:.2f} and {paired.high:.2f}"
                )
                found.append(Recommendation(setting=setting, gain=paired.middle, evidence=evidence))
    return found


def _flags_beside(chosen: Settings, parts: Parts) -> Iterator[tuple[str, Settings]]:
    """Yield the choice with one flag changed that is set, behind the setting in words."""
    space = parts.space
    for beside in space.measured_flags if parts.steps_matter() else ():
        name = next(each for each in Flags.model_fields if getattr(beside, each) != getattr(space.flags[0], each))
        value = getattr(beside, name)
        flags, size = chosen.flags.model_copy(update={name: value}), chosen.slot_size
        if flags.compile and flags.activation_checkpointing != "none":
            continue
        if name == "activation_checkpointing":
            # It is slower by itself: what it may bring is a larger slot.
            if not parts.spare_memory([flags]) or parts.best_rate(flags) <= (1 + TOLERANCE) * parts.best_rate(
                chosen.flags
            ):
                continue
            size = parts.best_size(flags)
        words = {True: "true", False: "false"} if name == "channels_last" else {True: "on", False: "off"}
        word = words[value] if isinstance(value, bool) else value
        other = space.settings(
            size,
            chosen.num_workers,
            prefetch_factor=chosen.prefetch_factor,
            threads=chosen.threads,
            flags=flags,
        )
        yield f"train.{name}={word}", other
