"""The samples that a network got worst, as parts of a section."""

from pages.parts import Worst, WorstSample

__all__ = ["Worst", "WorstSample"]
