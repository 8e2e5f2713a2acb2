"""What is kept of a job between its attempts."""

from pathlib import Path

import pytest

from contracts import storage
from contracts.errors import ConfigError, ErrorDocument, PeerPreempted, Preempted, ToldError, TryAgain
from trainer.launch.attempts import AttemptCounter, JobRecord

BAD = ErrorDocument.of(ConfigError("given", allowed="allowed", todo="todo"))
LOST = ErrorDocument.of(TryAgain("a rank was killed"))
STOPS = [ErrorDocument.of(kind("SIGTERM")) for kind in (Preempted, PeerPreempted)]


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
    with pytest.raises(ToldError, match="an earlier attempt of job job-1 has ended it: given") as told:
        JobRecord(place, "job-1").require_open()
    assert told.value.exit_code == 2
    JobRecord(place, "job-2").require_open()
    JobRecord(place, "").end(BAD)
    JobRecord(place, "").require_open()


def test_attempts_without_a_new_checkpoint_end(place: str) -> None:
    assert [counter(place, "job-1").begin(None) for _ in range(3)] == [0, 1, 2]
    given_up = counter(place, "job-1").begin(LOST)
    assert isinstance(given_up, ErrorDocument)
    # Never 75: the platform would start again.
    assert given_up.exit_code == 70
    assert "3 attempts in a row have left no new checkpoint" in given_up.message
    assert "a rank was killed" in given_up.message
    assert counter(place, "job-2").begin(None) == 0


@pytest.mark.parametrize("job", ["job-1", ""])
def test_attempts_that_were_told_to_stop_do_not_count(place: str, job: str) -> None:
    """Whoever was: this launcher, which ends with it, or another machine's, which is waited for."""
    given = counter(place, job, 2)
    for stop in [None, *STOPS * 3]:
        assert isinstance(given.begin(stop), int)
    for _ in range(6):
        given.told_to_stop()
        # Once for each attempt.
        given.told_to_stop()
        given = counter(place, job, 2) if job else given
        assert isinstance(given.begin(None), int)
    assert isinstance(given.begin(LOST), int)
    assert isinstance(given.begin(LOST), ErrorDocument)


@pytest.mark.parametrize(
    ("steps", "final"),
    [((5, 5), True), ((5, 6), False), ((None, None), False), ((5, None, 5), False), ((5, -1, 5), False)],
)
def test_memory_that_runs_out_is_final_when_it_does_twice_at_a_step(
    place: str, steps: tuple[int | None, ...], final: bool
) -> None:
    """None: the system's word, not torch's; -1: something else in between."""
    given = counter(place, "job-1", 9)
    full = ErrorDocument(kind="OutOfMemory", exit_code=75, message="m")
    ends = [LOST if step == -1 else full.model_copy(update={"step": step}) for step in steps]
    assert isinstance(given.begin(None), int)
    *before, last = [given.begin(end) for end in ends]
    assert all(isinstance(each, int) for each in before)
    assert isinstance(last, ErrorDocument) == final
    if isinstance(last, ErrorDocument):
        assert (last.exit_code, last.message) == (2, "m")


def test_a_job_that_goes_on_never_ends(place: str) -> None:
    for attempt in range(20):
        # Every other attempt saves one; older ones are deleted.
        if attempt % 2:
            save(place, f"step-{attempt:08d}.a")
        assert counter(place, "job-1", 2).begin(LOST) == attempt


def test_an_older_step_saved_anew_counts(place: str) -> None:
    """A resume from before a damaged checkpoint saves the steps before it again."""
    save(place, "step-00000100.a")
    of_one_launcher = counter(place, "", 2)
    assert [of_one_launcher.begin(LOST) for _ in range(2)] == [0, 1]
    save(place, "step-00000050.b")
    assert [of_one_launcher.begin(LOST) for _ in range(2)] == [2, 3]
    assert isinstance(of_one_launcher.begin(LOST), ErrorDocument)


def test_a_folder_without_its_manifest_is_no_checkpoint(place: str) -> None:
    one = counter(place, "job-1", 1)
    assert one.begin(None) == 0
    save(place, "step-00000001.a")
    storage.delete(storage.join(place, "training", "checkpoints", "step-00000001.a", "manifest.json"))
    assert isinstance(one.begin(BAD), ErrorDocument)


def test_without_a_job_only_this_command_counts(place: str) -> None:
    for _ in range(4):
        assert counter(place, "", 1).begin(None) == 0
    assert not (Path(storage.local_path(place)) / "jobs").exists()


def test_what_is_not_json_is_no_reason_to_end(place: str) -> None:
    counter(place, "job-1").begin(None)
    storage.replace(storage.join(place, "jobs", "job-1", "attempts.json"), b"{")
    assert counter(place, "job-1").begin(None, after=7) == 8
