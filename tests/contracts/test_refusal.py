"""Errors that cross from a worker to whoever waits come back as what they were."""

from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import OtherVersion
from contracts.errors import ConfigError, DataError, ModelError, PeerPreempted, StorageError, TryAgain, UserError
from contracts.refusal import find_refusal, leave_refusal


@pytest.mark.parametrize("kind", [ConfigError, DataError, ModelError, StorageError])
def test_a_users_error_keeps_its_type_and_parts(tmp_path: Path, kind: type[UserError]) -> None:
    output = storage.normalise(tmp_path)
    leave_refusal(output, kind("given", allowed="allowed", todo="to do"))
    found = find_refusal(output)
    assert type(found) is kind
    assert (found.given, found.allowed, found.todo) == ("given", "allowed", "to do")


def test_what_may_succeed_again_says_so(tmp_path: Path) -> None:
    output = storage.normalise(tmp_path)
    assert find_refusal(output) is None
    leave_refusal(output, TryAgain("busy"))
    found = find_refusal(output)
    assert type(found) is TryAgain and str(found) == "busy"


def test_a_special_case_comes_back_as_what_it_is_a_case_of(tmp_path: Path) -> None:
    output = storage.normalise(tmp_path)
    leave_refusal(output, OtherVersion("given", allowed="allowed", todo="to do"))
    assert type(find_refusal(output)) is DataError
    leave_refusal(output, PeerPreempted("gone"))
    assert type(find_refusal(output)) is TryAgain
