"""The models of a line and which of them is in production: LINE/models/N.json and LINE/promotions/N.json.

Both are create-only, numbered from 1 without gaps, and never changed. The alias `production` is what the newest
decision says, whatever a registry elsewhere shows: that one follows.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from contracts.artifacts.document import Document

MODELS_FOLDER = "models"
PROMOTIONS_FOLDER = "promotions"
JUDGEMENT_NAME = "judgement.json"
"""In LINE/runs/RUN/results/."""
Verdict = Literal["promote", "keep", "not judged"]
Action = Literal["promoted", "kept", "not judged", "rolled back"]


class ModelVersion(Document):
    """An export that can be put into production. Of two versions of one run the lower number counts."""

    number: PositiveInt
    run: str
    """Id of the run that made it."""
    export: str
    """URI of its folder."""
    made_at: str
    """ISO 8601, UTC."""
    proven: bool


class ClassChange(Document):
    """What the new model gains or loses on one class."""

    name: str
    samples: NonNegativeInt
    champion: float
    """Recall, in [0, 1]."""
    challenger: float


class Judgement(Document):
    """The model of a run beside the one in production, on the run's test split."""

    verdict: Verdict
    reasons: list[str]
    """Why, each with value and limit; at least one."""
    champion: str = ""
    """Run whose model is in production; empty: none is."""
    metric: str = ""
    """Name of what was compared; empty: nothing was."""
    higher_is_better: bool = True
    samples: NonNegativeInt = 0
    """Test samples that both have answered."""
    champion_value: float | None = None
    challenger_value: float | None = None
    interval: tuple[float, float] | None = None
    """95 % interval of challenger less champion, in units of the metric."""
    method: str = ""
    """How the interval was made, e.g. `paired bootstrap, 2,000 draws`."""
    classes: list[ClassChange] = Field(default=[])
    """Those that lose most, at most 20."""


class Decision(Document):
    """What production is from here on, and why."""

    number: PositiveInt
    at: str
    """ISO 8601, UTC."""
    by: str
    """Who: the account or user, or `run ID` where a run has decided."""
    action: Action
    run: str
    """Run whose model was judged, promoted, or gone back to."""
    before: str
    """Run whose model was in production; empty: none was."""
    production: str
    """Run whose model is in production from now on; empty: none is."""
    reasons: list[str]
    judgement: Judgement | None = None
    """None: moved by hand."""
