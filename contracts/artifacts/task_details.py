"""What the details of evaluations of all tasks have in common: how they are read out of evaluation.json."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import ValidationError

from contracts.artifacts.document import Document
from contracts.artifacts.evaluation import EvaluationReport
from contracts.errors import DataError


class TaskDetails(Document):
    """The details of an evaluation of some tasks; nothing but these tasks and their pages reads them."""

    OF_TASKS: ClassVar[tuple[str, ...]]
    """Names of the tasks."""

    @classmethod
    def of(cls, report: EvaluationReport) -> Self | None:
        """Return the details of an evaluation; None where it is of another task.

        Raises:
            DataError: They are damaged.
        """
        if report.task not in cls.OF_TASKS:
            return None
        try:
            return cls.model_validate(report.details)
        except ValidationError as error:
            finding = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in finding["loc"])
            raise DataError(
                f"the evaluation is damaged at details.{place}: {finding['msg']}",
                allowed=f"the details of {report.task}",
                todo="train again with --fresh",
            ) from None
