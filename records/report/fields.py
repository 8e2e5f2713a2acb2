"""The fields of drawn samples and of the label, judged one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.artifacts import ShardManifest
from contracts.artifacts.data_report import FieldReport, Verdict
from contracts.config import FieldLimits, ValidateSection
from records.drawn import Column, DrawnTable
from records.report.statistics import Apart, compare_named, compare_numbers

LABEL = "label"
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_NO_LIMITS = FieldLimits()
_WORST: tuple[Verdict, ...] = ("ok", "warn", "fail")


def worst(verdicts: Iterator[Verdict] | list[Verdict]) -> Verdict:
    """Return the worst of verdicts; `ok` of none."""
    return max(verdicts, key=_WORST.index, default="ok")


@dataclass(frozen=True)
class FieldData:
    """One field of the training samples of a manifest."""

    name: str
    kind: str
    values: Column | None
    """[drawn samples]; None of the label."""
    counts: Mapping[Any, int]
    """Of a category by code, of the label by name of the class; empty of numbers."""
    size: int

    @property
    def missing(self) -> float:
        """Share of missing values."""
        if self.values is None or not len(self.values):
            return 0.0
        return float(np.isnan(self.values).mean())

    @property
    def quantiles(self) -> list[float] | None:
        """Of numbers, where any is known."""
        if self.values is None or self.kind != "number" or np.isnan(self.values).all():
            return None
        return [float(value) for value in np.nanquantile(self.values, _QUANTILES)]


def read_fields(manifest: ShardManifest, table: DrawnTable | None) -> dict[str, FieldData]:
    """Return the fields of the training split by name: the label first, then what was drawn."""
    found = {}
    if manifest.classes:
        counts = dict(zip(manifest.classes, manifest.splits["train"].samples_by_class, strict=False))
        found[LABEL] = FieldData(LABEL, "classes", None, counts, manifest.splits["train"].samples)
    if manifest.drawn is None or table is None:
        return found
    label = manifest.label_field
    for column in manifest.drawn.columns:
        if column.name == label:
            continue
        values = table.columns[column.name]
        counted: dict[Any, int] = {}
        if column.kind == "category":
            # A missing value is a cell of its own.
            counted = {**Counter(values[~np.isnan(values)].tolist()), None: int(np.isnan(values).sum())}
        found[column.name] = FieldData(column.name, column.kind, values, counted, len(values))
    return found


def check_limits(data: FieldData, validate: ValidateSection) -> FieldReport:
    """Return what is said of a field by the limits of its values alone."""
    said = list(_beyond_limits(data, validate.fields.get(data.name, _NO_LIMITS)))
    return _describe(data).model_copy(update={"verdict": "fail" if said else "ok", "said": said})


def compare_field(data: FieldData, before: FieldData, validate: ValidateSection, num_fields: int) -> FieldReport:
    """Return what is said of a field beside its earlier state.

    Args:
        data: The field now.
        before: The same field of the earlier data.
        validate: What is allowed.
        num_fields: Fields that are compared: p is multiplied by it.
    """
    report = _describe(data).model_copy(update={"before": before.size, "earlier": _rounded(before.quantiles)})
    if min(before.size, data.size) < validate.least_samples or not _counted(before, data):
        few = f"too few samples to judge: {before.size} before, {data.size} now (validate.least_samples)"
        return report.model_copy(update={"said": [few]})
    apart, limits = _compare(before, data), validate.fields.get(data.name, _NO_LIMITS)
    p = min(1.0, apart.p * num_fields)
    verdict: Verdict = "ok"
    said: list[str] = []
    levels: tuple[tuple[Verdict, str], ...] = (("fail", "fail_excess"), ("warn", "warn_excess"))
    for level, key in levels:
        own = getattr(limits, key)
        limit = getattr(validate, key) if own is None else own
        if apart.excess > limit and p < validate.significance:
            where = f"validate.{key}" if own is None else f"validate.fields.{data.name}.{key}"
            said.append(f"drifted: excess PSI {apart.excess:.3g}, above {where} {limit:g}{_shift(before, data)}")
            verdict = "warn" if validate.drift == "warn" else level
            break
    figures = {"cells": apart.cells, "psi": apart.psi, "excess": apart.excess, "p": p, "distance": apart.distance}
    return report.model_copy(update={**figures, "verdict": verdict, "said": said})


def _describe(data: FieldData) -> FieldReport:
    """Return what is known of a field as it is; nothing is said of it yet."""
    return FieldReport(
        name=data.name,
        kind=data.kind,  # type: ignore[arg-type]
        verdict="ok",
        now=data.size,
        missing=data.missing,
        quantiles=_rounded(data.quantiles),
    )


def _counted(*sides: FieldData) -> bool:
    """Whether there is something to compare: samples of several labels may have none."""
    return all(side.kind == "number" or any(side.counts.values()) for side in sides)


def _compare(before: FieldData, now: FieldData) -> Apart:
    if before.values is not None and now.values is not None and now.kind == "number":
        return compare_numbers(before.values, now.values)
    return compare_named(before.counts, now.counts)


def _shift(before: FieldData, now: FieldData) -> str:
    """Return how the median moved, in words."""
    if before.quantiles is None or now.quantiles is None:
        return ""
    return f"; median {before.quantiles[3]:.4g} before, {now.quantiles[3]:.4g} now"


def _rounded(values: list[float] | None) -> list[float] | None:
    """Return figures to show: with four digits they are no sample's own value (`inspect.samples`)."""
    return None if values is None else [float(f"{value:.4g}") for value in values]


def _beyond_limits(data: FieldData, limits: FieldLimits) -> Iterator[str]:
    """Yield what is beyond the limits of a field, in words."""
    where = f"validate.fields.{data.name}"
    if limits.max_missing is not None and data.missing > limits.max_missing:
        yield f"{data.missing:.2%} missing, above {where}.max_missing {limits.max_missing:g}"
    found = data.quantiles
    if found is None:
        return
    if limits.least is not None and found[0] < limits.least:
        yield f"least value {found[0]:.4g}, below {where}.least {limits.least:g}"
    if limits.most is not None and found[-1] > limits.most:
        yield f"largest value {found[-1]:.4g}, above {where}.most {limits.most:g}"
