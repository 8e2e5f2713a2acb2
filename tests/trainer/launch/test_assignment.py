"""Why ranks ended, as they leave it and as the launcher reads it."""

from pathlib import Path

import pytest

from contracts.errors import ConfigError, ErrorDocument, PeerPreempted, Preempted, TryAgain
from tests.trainer.launch.machines import make_assignment
from trainer.launch.assignment import Assignment, decisive_end

USER = ErrorDocument.of(ConfigError("given", allowed="allowed", todo="todo"))
STOP = ErrorDocument.of(Preempted("SIGTERM"))
PEER = ErrorDocument.of(PeerPreempted("SIGTERM"))
HUNG = ErrorDocument.of(TryAgain("no step for 60 s"))
CRASH = ErrorDocument.of(RuntimeError("crash"))
FULL = ErrorDocument(kind="OutOfMemory", exit_code=75, message="m", step=5)


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    return make_assignment(tmp_path, nodes=3)


@pytest.mark.parametrize(
    ("ends", "decisive"),
    [
        ([], None),
        ([STOP, STOP], STOP),
        # One rank of a machine that goes away is told first: its peers fail, or are killed.
        ([STOP], STOP),
        ([CRASH, STOP], STOP),
        ([STOP, HUNG], STOP),
        ([USER, STOP], USER),
        ([CRASH, HUNG], CRASH),
        ([CRASH, USER], USER),
        # The peers of the rank that ran out of memory lose it at once.
        ([HUNG, FULL], FULL),
        ([FULL, USER], USER),
        # Told to stop: one rank of this machine, or another machine alone.
        ([PEER, STOP], STOP),
        ([PEER, PEER], PEER),
        ([PEER], None),
        ([PEER, CRASH], CRASH),
    ],
)
def test_the_end_that_explains_the_others(ends: list[ErrorDocument], decisive: ErrorDocument | None) -> None:
    assert decisive_end(dict(enumerate(ends)), 2) == decisive
    late = ErrorDocument.of(Preempted("not saved in time"))
    assert decisive_end({1: STOP, 0: late}, 2) == late, "of ranks that stopped the lowest, whoever was the first"


def test_the_world_and_the_folder_of_scalars(assignment: Assignment, tmp_path: Path) -> None:
    assert assignment.world_size == 6
    assert assignment.tensorboard_folder == Path("/training/tensorboard")
    in_a_bucket = assignment.model_copy(update={"folder": "gs://bucket/training"})
    assert in_a_bucket.tensorboard_folder == tmp_path / "tensorboard"
    assert Assignment.model_validate_json(assignment.write().read_bytes()) == assignment
