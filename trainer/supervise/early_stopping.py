"""Early stopping: the end of training after evaluations that got no better (train.early_stopping).

Every evaluation counts. What was seen is in each checkpoint, so a resume decides
as training without a stop does; nothing here looks at a clock, or at what one rank alone knows.
"""

from __future__ import annotations

from contracts.artifacts import EarlyStopping
from contracts.config import EarlyStoppingSection
from contracts.errors import ConfigError
from trainer.evaluate import Evaluation


def judge(seen: EarlyStopping, section: EarlyStoppingSection, found: Evaluation) -> EarlyStopping:
    """Return what was seen with one more evaluation on the validation split.

    An evaluation is better when it beats the best before it; the first one always is. One without the metric, since
    that came to no finite number, is not.
    """
    value, direction = found.look_up(section.metric)
    sign = 1 if direction == "max" else -1
    if value is not None and (seen.best is None or sign * (value - seen.best) > 0):
        return EarlyStopping(best=value, since_best=0)
    return EarlyStopping(best=seen.best, since_best=seen.since_best + 1)


def is_over(seen: EarlyStopping | None, section: EarlyStoppingSection | None) -> bool:
    """Whether training ends after what was seen."""
    return section is not None and seen is not None and seen.since_best >= section.patience


def describe_stop(seen: EarlyStopping, section: EarlyStoppingSection) -> str:
    """Say why training ended."""
    what = "came to no number" if seen.best is None else f"was not better than {seen.best:.6g}"
    return (
        f"train.early_stopping: {section.metric} {what} in {seen.since_best} "
        f"evaluations in a row (patience {section.patience}): training ends"
    )


def require_validation(section: EarlyStoppingSection | None, samples: int) -> None:
    """Refuse early stopping where there is nothing to evaluate on.

    Args:
        section: train.early_stopping.
        samples: Of the validation split.

    Raises:
        ConfigError: There are none.
    """
    if section is not None and samples == 0:
        raise ConfigError(
            f"train.early_stopping watches {section.metric}, and the shards have no validation split",
            allowed="shards with samples in their validation split",
            todo="set sharding.splits with a share for validation, or leave train.early_stopping out",
        )
