"""What is kept of a job between its attempts."""

from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import ConfigError, ErrorDocument, ForwardedError, PeerPreempted, Preempted, TryAgain
from trainer.launch.assignment import decisive_end
from trainer.launch.attempts import AttemptCounter, JobRecord

BAD = ErrorDocument.of(ConfigError("given", allowed="allowed", todo="todo"))
LOST = ErrorDocument.of(TryAgain("a rank was killed"))


@pytest.fixture
def place(tmp_path: Path) -> str:
    return storage.normalise(tmp_path)


def save(place: str, name: str) -> None:
    """Commit a checkpoint, data first."""
    folder = Path(storage.local_path(place)) / "training" / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("weights")
    storage.publish(storage.join(storage.normalise(folder), "manifest.json"), b"{}")


def counter(place: str, job: str, most: int = 3) -> AttemptCounter:
    """As a launcher that was started anew has it."""
    return AttemptCounter(JobRecord(place, job), storage.join(place, "training"), most)


def test_an_error_ends_later_attempts_of_its_job_and_of_no_other(place: str) -> None:
    record = JobRecord(place, "job-1")
    record.require_open()
    record.end(BAD)
    # A second one, later or at the same time, changes nothing.
    record.end(LOST)
    with pytest.raises(ForwardedError, match="an earlier attempt of job job-1 has ended it: given") as caught:
        JobRecord(place, "job-1").require_open()
    assert caught.value.exit_code == 2
    JobRecord(place, "job-2").require_open()
    JobRecord(place, "").end(BAD)
    JobRecord(place, "").require_open()


def test_starts_without_a_new_checkpoint_end(place: str) -> None:
    assert [counter(place, "job-1").begin(None) for _ in range(3)] == [None] * 3
    given_up = counter(place, "job-1").begin(LOST)
    assert given_up is not None
    # Never 75: the platform would start again.
    assert given_up.exit_code == 70
    assert "3 attempts in a row have left no new checkpoint" in given_up.message
    assert "a rank was killed" in given_up.message
    assert counter(place, "job-2").begin(None) is None
    # Without a job only this command counts, and nothing is written.
    assert [counter(place, "", 1).begin(None) for _ in range(4)] == [None] * 4
    assert sorted(path.name for path in Path(storage.local_path(place), "jobs").iterdir()) == ["job-1", "job-2"]


def test_starts_that_were_told_to_stop_do_not_count(place: str) -> None:
    for _ in range(6):
        current = counter(place, "job-1", 2)
        assert current.begin(None) is None
        current.uncount_start()
    assert [current.begin(LOST) is None for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("steps", "final"),
    [((5, 5), True), ((5, 6), False), ((None, None), False), ((5, -1, 5), False)],
)
def test_memory_that_runs_out_is_final_when_it_does_twice_at_a_step(
    place: str, steps: tuple[int | None, ...], final: bool
) -> None:
    """None: the system's word, not torch's; -1: something else in between."""
    current = counter(place, "job-1", 9)
    full = ErrorDocument(kind="OutOfMemory", exit_code=75, message="m")
    assert current.begin(None) is None
    *before, last = [current.begin(LOST if step == -1 else full.model_copy(update={"step": step})) for step in steps]
    assert before == [None] * len(before)
    assert last == (full.model_copy(update={"step": 5, "exit_code": 2}) if final else None)


def test_a_job_that_makes_progress_never_ends(place: str) -> None:
    for attempt in range(8):
        # Every other start saves one, at an older step too: a resume from before a damaged checkpoint saves it again.
        if attempt % 2:
            save(place, f"step-{100 - attempt:08d}.a")
        assert counter(place, "job-1", 2).begin(LOST) is None
    # A folder without its manifest is no checkpoint.
    save(place, "step-00000001.a")
    storage.delete(storage.join(place, "training", "checkpoints", "step-00000001.a", "manifest.json"))
    assert [counter(place, "job-1", 2).begin(LOST) is None for _ in range(2)] == [True, False]


STOP = ErrorDocument.of(Preempted("SIGTERM"))
PEER = ErrorDocument.of(PeerPreempted("SIGTERM"))
HUNG = ErrorDocument.of(TryAgain("no step for 60 s"))
CRASH = ErrorDocument.of(RuntimeError("crash"))
FULL = ErrorDocument(kind="OutOfMemory", exit_code=75, message="m", step=5)


@pytest.mark.parametrize(
    ("ends", "decisive"),
    [
        ([], None),
        # One rank of a machine that goes away is told first: its peers fail, or are killed.
        ([STOP], STOP),
        ([CRASH, STOP], STOP),
        ([CRASH, HUNG], CRASH),
        ([CRASH, BAD], BAD),
        # The peers of the rank that ran out of memory lose it at once.
        ([HUNG, FULL], FULL),
        # Told to stop: one rank of this machine, or another machine alone.
        ([PEER, STOP], STOP),
        ([PEER, PEER], PEER),
        ([PEER], None),
    ],
)
def test_the_end_that_explains_the_others(ends: list[ErrorDocument], decisive: ErrorDocument | None) -> None:
    assert decisive_end(dict(enumerate(ends)), 2) == decisive
    late = ErrorDocument.of(Preempted("not saved in time"))
    assert decisive_end({1: STOP, 0: late}, 2) == late, "of ranks that stopped the lowest, whoever was the first"
