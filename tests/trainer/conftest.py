"""What all tests of the trainer need."""

import pytest

from contracts.own_code import append_code
from tests.conftest import OWN_CODE


@pytest.fixture(autouse=True)
def _own_code_of_tests() -> None:
    """Let this process import the tests' networks as a rank imports the user's."""
    append_code(OWN_CODE)
