"""Section `validate`: what may change in the data between two runs before training is stopped."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.config.base import Fraction, NotBool, Section

Word = Literal["fail", "warn", "ignore"]
_Limit = Annotated[float, Field(ge=0), NotBool]


class FieldLimits(Section):
    """Limits of one field, or of one column of it."""

    warn_excess: _Limit | None = None
    """Excess PSI from which a change is a warning; unset: that of the section."""
    fail_excess: _Limit | None = None
    """Excess PSI from which a change is a failure; unset: that of the section."""
    least: Annotated[float, NotBool] | None = None
    """No drawn value may be below it."""
    most: Annotated[float, NotBool] | None = None
    """No drawn value may be above it."""
    max_missing: Fraction | None = None
    """Largest share of missing values among the drawn samples."""


class ValidateSection(Section):
    """What the shard stage says to data that differs from that of an earlier run. It changes no shard."""

    drift: Word = "warn"
    """What becomes of a run in which a field has drifted beyond `fail_excess`; `ignore` compares nothing."""
    warn_excess: _Limit = 0.1
    """Excess PSI of a field from which a change is a warning (docs/retraining.md)."""
    fail_excess: _Limit = 0.25
    """Excess PSI of a field from which a change is a failure."""
    significance: Annotated[float, Field(gt=0, lt=1), NotBool] = 0.001
    """Largest p of the chi-square test, times the number of fields, at which a change counts."""
    least_samples: Annotated[int, Field(strict=True, ge=1)] = 200
    """With fewer training samples on either side a field is not judged."""
    new_classes: Word = "warn"
    """What becomes of a run whose training data has a class, or a category, that the earlier data had not."""
    vanished_classes: Word = "warn"
    """What becomes of a run whose training data lacks a class, or a category, that the earlier data had."""
    moved_samples: Word = "fail"
    """What becomes of a run in which more than one sample in 1,000 is in another split than before; fewer are a
    warning: `sharding.stratify` moves single ones as a source grows."""
    fields: dict[str, FieldLimits] = {}
    """Limits of single fields, by name: bytes, width, height, brightness and contrast of images, label, the names of
    `sharding.fields`, and of a field of numbers those of its columns. They hold without an earlier run too."""
