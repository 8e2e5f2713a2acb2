"""Fixtures: see tests/rehearsal/vertex/conftest.py."""

from ..vertex.conftest import cloud, make_cloud

__all__ = ["cloud", "make_cloud"]
