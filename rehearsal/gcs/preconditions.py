"""Preconditions: "only if the object is still the one I know".

https://cloud.google.com/storage/docs/request-preconditions describes them; generation 0 means "there is no live
object", so ifGenerationMatch=0 creates and never overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rehearsal.gcs.messages import ApiError, number_in


@dataclass(frozen=True)
class Preconditions:
    """What must hold for a request to have an effect; None asks nothing."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Preconditions:
        """Read the JSON API's query parameters."""
        return cls(
            number_in(query, "ifGenerationMatch"),
            number_in(query, "ifGenerationNotMatch"),
            number_in(query, "ifMetagenerationMatch"),
            number_in(query, "ifMetagenerationNotMatch"),
        )

    def check(self, generation: int, metageneration: int, *, reading: bool = False) -> None:
        """Compare with a live object, or with 0 and 0 where there is none.

        Raises:
            ApiError: 412; or 304 when a reading request asked for anything but the object as it is.
        """
        if self.generation_match not in (None, generation) or self.metageneration_match not in (None, metageneration):
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold.")
        if generation == self.generation_not_match or metageneration == self.metageneration_not_match:
            if reading:
                raise ApiError(304, "Not Modified")
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold.")


NOTHING = Preconditions()
