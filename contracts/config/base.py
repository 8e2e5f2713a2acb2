"""What all sections share: the kinds of values, and how strict a section is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from contracts.field_docs import Documented

Auto = Literal["auto"]


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "a number")
    return value


REFUSED = "refused"


def refusal(given: str, *, allowed: str, todo: str) -> PydanticCustomError:
    """Return the error of a value in the words of a ConfigError: what is wrong with it, what is allowed, what to do."""
    return PydanticCustomError(REFUSED, "{given}", {"given": given, "allowed": allowed, "todo": todo})


# Not strict: a number in quotes is one too; but true is no number, though Python says 1.
# It stands behind the bounds, which then are those of a float.
NotBool = BeforeValidator(_refuse_bool)
Fraction = Annotated[float, Field(ge=0, le=1), NotBool]
# Strict: true is no whole number, though Python says 1.
PositiveInt = Annotated[int, Field(strict=True, ge=1)]


class Section(Documented, BaseModel):
    """Base of the sections: immutable, strict about keys, documented by the strings below the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)
