"""Machines: Compute Engine's types (compute) and prices; combinations and quotas of Vertex AI's custom jobs.

Tables with date and source. What no source says is absent, never guessed: a price that is unknown is None, a quota
metric whose name was only derived says so. The local Vertex has a table of its own (rehearsal/vertex/rules.py), so that
one mistake is not made on both sides.
"""

from __future__ import annotations

from contracts.machines.combinations import AS_OF, SOURCE, find_machine, list_combinations
from contracts.machines.machine import ACCELERATORS, LEAST_FOR_COMPILE, LEAST_FOR_CUDA_13, Accelerator, Machine
from contracts.machines.price_file import read_price_file
from contracts.machines.prices import PriceBook, PriceRange, hourly_price
from contracts.machines.quotas import QuotaNeed, find_quotas

__all__ = [
    "ACCELERATORS",
    "AS_OF",
    "LEAST_FOR_COMPILE",
    "LEAST_FOR_CUDA_13",
    "SOURCE",
    "Accelerator",
    "Machine",
    "PriceBook",
    "PriceRange",
    "QuotaNeed",
    "find_machine",
    "find_quotas",
    "hourly_price",
    "list_combinations",
    "read_price_file",
]
