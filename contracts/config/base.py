"""Kinds of values that the sections share, and how strict a section is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

REFUSED = "refused"
"""Type of pydantic's errors that `refusal` makes."""


def refusal(given: str, *, allowed: str, todo: str) -> PydanticCustomError:
    """Return the error of a value in the words of a ConfigError: what is wrong with it, what is allowed, what to do."""
    return PydanticCustomError(REFUSED, "{given}", {"given": given, "allowed": allowed, "todo": todo})


def _refuse_bool(value: object) -> object:
    # Python takes 1_000 for 1000: in YAML it is text, and 1e_6 is a mistake.
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise PydanticCustomError("float_type", "a number")
    return value


# A number in quotes is one too, but true is no number, though Python says 1. It stands behind the bounds, which then
# are those of a float.
NotBool = BeforeValidator(_refuse_bool)
Fraction = Annotated[float, Field(ge=0, le=1), NotBool]
Positive = Annotated[float, Field(gt=0), NotBool]
# Strict: true is no whole number either.
PositiveInt = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Auto = Literal["auto"]


class Section(BaseModel):
    """Base of the sections: immutable, strict about keys, each field documented by the string below it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _take_defaults(cls, values: Any) -> Any:
        """Leave out sections and maps of which every key is commented out: YAML reads them as null."""
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        maps = {name for name in fields if isinstance(fields[name].default, (dict, Section))}
        return {name: value for name, value in values.items() if value is not None or name not in maps}
