"""Every combination end to end, one after the other, and the fastest taken: what the sweep is compared with."""

from __future__ import annotations

from statistics import median

from contracts.artifacts import Settings
from trainer.profiling.ledger import Ledger, Result
from trainer.profiling.measure import Failed
from trainer.profiling.pairs import choice_of, describe
from trainer.profiling.space import Space

# Windows of a combination, as the report's rates are medians: the least of which one may be an outlier.
GRID_WINDOWS = 3


def full_grid(ledger: Ledger) -> Result:
    """Measure every combination of a space; activation checkpointing only where memory runs out without.

    When the budget is over, it is the best that was found, or the defaults where fewer than two were measured, with a
    warning.

    Args:
        ledger: What measures, within a budget.

    Raises:
        ConfigError: Nothing could be measured.
    """
    space = ledger.space
    # The default first, as what is taken has beaten it; then large slots, the fastest more often than not: a budget may
    # end this.
    reference = space.reference
    combinations = sorted(space.combinations(), key=lambda each: (each != reference, -each.slot_size))
    if reference is not None and reference not in combinations:
        combinations.insert(0, reference)
    plain = [each for each in combinations if not space.recomputes(each.flags)]
    ledger.expected = len(plain)
    rates: dict[str, tuple[float, Settings]] = {}
    too_large: set[tuple[int, str]] = set()
    left_out = 0
    for settings in [*plain, *(each for each in combinations if space.recomputes(each.flags))]:
        if space.recomputes(settings.flags) and _without(space, settings) not in too_large:
            continue
        if not ledger.allows("run") and space.has_alternatives():
            left_out += 1
            continue
        (found,) = ledger.run([settings], rounds=GRID_WINDOWS, predicted=[None])
        if not isinstance(found, Failed):
            rates[settings.model_dump_json()] = median(found), settings
        elif found.is_cut_off:
            left_out += 1
        elif found.outcome == "out of memory":
            too_large.add((settings.slot_size, settings.flags.model_dump_json()))
    warnings = list(space.ignored)
    if left_out and len(rates) < 2 and ledger.anything_worked() and not _failed(space.default, ledger):
        choice, warning = ledger.defaults(len(rates))
        return Result(choice, ledger.points(), warnings=[*warnings, warning])
    if not rates:
        raise ledger.nothing_measured()
    best_rate, best = max(rates.values(), key=lambda found: found[0])
    if left_out:
        warnings.append(
            f"profile.budget_s {ledger.budget_s:g} ended the grid: {left_out} combinations were not measured; "
            "the best that was is taken"
        )
    reason = f"{best_rate:.0f} samples/s per rank, the most of {len(rates)} combinations measured end to end"
    choice = choice_of(best, reason=f"{reason} ({describe(best)})", clear=False)
    return Result(choice, ledger.points(), warnings=warnings)


def _failed(default: Settings, ledger: Ledger) -> bool:
    """Whether slots as large as the default's did not work with its steps."""
    return any(
        point.samples_per_s is None and point.slot_size <= default.slot_size and point.flags == default.flags
        for point in ledger.points()
    )


def _without(space: Space, settings: Settings) -> tuple[int, str]:
    usual = space.flags[0].activation_checkpointing
    flags = settings.flags.model_copy(update={"activation_checkpointing": usual})
    return settings.slot_size, flags.model_dump_json()
