"""What the tests of examples need: ranks that write what they train on."""

from tests.trainer.conftest import _hooks_of_tests

__all__ = ["_hooks_of_tests"]
