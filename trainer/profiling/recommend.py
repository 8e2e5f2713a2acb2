"""Flags that the configuration sets: measured beside the choice in pairs, and recommended where they are faster.

The pairs are end to end, on the cut that was chosen: a flag that makes steps faster gains little where they wait for
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contracts.artifacts import Flags, Recommendation, Settings
from trainer.profiling.ledger import ROUNDS, Ledger
from trainer.profiling.measure import Failed
from trainer.profiling.pairs import FINALISTS, TOLERANCE, Contender, ratio
from trainer.profiling.parts import Parts

# A flag is recommended where it beats the choice by this share in the median of their pairs: less may be noise.
WORTH_A_WORD = 0.1


def recommend(chosen: Settings, parts: Parts, ledger: Ledger) -> list[Recommendation]:
    """Measure each flag that may not be chosen beside the choice; return those that are worth a word.

    Of several that are, all together are measured beside the best of them, and recommended where they are faster still:
    what a flag brings depends on the others. It comes last, so the rest of the budget is its own.

    Args:
        chosen: What was chosen, with flags that may be.
        parts: What was measured apart: whether steps matter, and what fits.
        ledger: What measures.
    """
    found: list[tuple[Recommendation, Settings]] = []
    parts.share = 1.0
    tried = list(_flags_beside(chosen, parts))
    while tried:
        turn, tried = tried[: FINALISTS - 1], tried[FINALISTS - 1 :]
        usual, others = _measure(chosen, [settings for _, settings in turn], ledger)
        for (setting, _), other in zip(turn, others, strict=True):
            if usual and other and (worth := _worth_a_word(setting, other, usual)) is not None:
                found.append((worth, other.settings))
    # Of each flag the best value.
    ranked = sorted(found, key=lambda each: each[0].gain)
    best_of = {worth.setting.partition("=")[0]: (worth, settings) for worth, settings in ranked}
    if len(best_of) > 1 and (joint := _together(chosen, [settings for _, settings in best_of.values()])) is not None:
        best = ranked[-1][1]
        usual, (single, both) = _measure(chosen, [best, joint], ledger)
        paired = ratio(both, single) if both and single else None
        if usual and both and paired and paired.middle > 1 + TOLERANCE and paired.low > 1:
            settings = " ".join(worth.setting for worth, _ in best_of.values())
            if (worth := _worth_a_word(settings, both, usual)) is not None:
                found.append((worth, joint))
    return [worth for worth, _ in found]


def _measure(
    chosen: Settings, others: Sequence[Settings], ledger: Ledger
) -> tuple[Contender | None, list[Contender | None]]:
    """Measure the choice and others in turn; None: there was no time for it, or it failed."""
    every = [chosen, *others]
    if not ledger.allows("turn", parts=len(every)):
        return None, [None] * len(others)
    usual, *found = (
        None if isinstance(rates, Failed) else Contender(settings, dict(enumerate(rates)))
        for settings, rates in zip(every, ledger.run(every, rounds=ROUNDS), strict=True)
    )
    return usual, found


def _worth_a_word(setting: str, other: Contender, usual: Contender) -> Recommendation | None:
    paired = ratio(other, usual)
    if paired is None or paired.middle <= 1 + WORTH_A_WORD or paired.low <= 1:
        return None
    evidence = (
        f"end to end at slot size {other.settings.slot_size}, {len(other.rates)} windows beside the choice: "
        f"{other.rate:.0f} samples/s, {usual.rate:.0f} without; 95 % confidence limits of the ratio "
        f"{paired.low:.2f} and {paired.high:.2f}"
    )
    return Recommendation(setting=setting, gain=paired.middle, evidence=evidence)


def _together(chosen: Settings, others: Sequence[Settings]) -> Settings | None:
    """Return the choice with all that others change of it; None: torch.compile and recomputing do not go together."""
    changed = {
        name: value
        for each in others
        for name, value in dict(each.flags).items()
        if value != getattr(chosen.flags, name)
    }
    flags = chosen.flags.model_copy(update=changed)
    if flags.compile and flags.activation_checkpointing != "none":
        return None
    largest = max(others, key=lambda each: each.slot_size)
    return largest.model_copy(update={"flags": flags})


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
            if not parts.spare_memory([flags]) or parts.best(flags)[0] <= (1 + TOLERANCE) * parts.best(chosen.flags)[0]:
                continue
            size = parts.best(flags)[1]
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
