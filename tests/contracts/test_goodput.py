"""Where time went: the arithmetic over events, on attempts made up by hand."""

from typing import Any

import pytest

from contracts.goodput import CLASS_NAMES, account

Events = list[dict[str, Any]]


class Attempt:
    """Writes the events of an attempt as ranks would, on a clock of its own."""

    def __init__(self, launched_at: float) -> None:
        self.now = self.launched_at = launched_at
        self.events: Events = []
        self.lives = 0
        self.emit("start", launched_at=launched_at)

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append({"time": self.now, "stage": "train", "attempt": "a", "event": event, **fields})

    def begin(self, after_s: float, step: int, set_up_s: float, nodes: int = 1) -> "Attempt":
        self.now += after_s
        self.lives += 1
        self.emit("life", life=self.life, started_at=self.now)
        self.now += set_up_s
        self.emit("resume", life=self.life, step=step, ranks=2, nodes=nodes)
        self.emit("spent", life=self.life, step=step, seconds={"set-up": set_up_s})
        return self

    def spend(self, to: int, /, **seconds: float) -> "Attempt":
        self.now += sum(seconds.values())
        self.emit("spent", life=self.life, step=to, seconds=seconds)
        return self

    def progress(self, step: int, unit: str = "steps") -> "Attempt":
        self.emit("progress", done=step, total=100, unit=unit, message="loss 1.0")
        return self

    def stop(self, step: int) -> "Attempt":
        self.emit("stop", life=self.life, step=step, cause="SIGTERM", preempted=True)
        return self

    def exit(self, after_s: float, code: int = 0) -> Events:
        self.now += after_s
        self.emit("exit", exit_code=code, launched_at=self.launched_at, wall_s=self.now - self.launched_at)
        return self.events

    @property
    def life(self) -> str:
        return str(self.lives)


def test_an_undisturbed_training() -> None:
    attempt = Attempt(100).begin(2, 0, 3).spend(10, step=8, data=1).spend(10, evaluation=2, checkpoint=1).exit(3)
    found = account([attempt])
    assert found.wall_s == 20
    assert (found.start_up_s, found.productive_s, found.data_wait_s) == (5, 8, 1)
    assert (found.evaluation_s, found.checkpoint_s, found.stop_s) == (2, 1, 3)
    assert (found.lost_s, found.recovery_s, found.between_attempts_s) == (0, 0, 0)
    assert found.goodput_percent == 40
    assert (found.attempts, found.starts, found.steps, found.preemptions, found.crashes) == (1, 1, 10, 0, 0)


def test_what_is_behind_the_checkpoint_that_training_went_back_to_is_lost() -> None:
    killed = Attempt(0).begin(1, 0, 1).spend(10, step=10).spend(10, checkpoint=1).spend(20, step=9, data=1).events
    again = Attempt(100).begin(1, 10, 1).spend(30, step=20).exit(1)
    found = account([again, killed])
    assert found.lost_s == 10
    assert found.lost_steps == 10
    assert found.productive_s == 30
    assert found.data_wait_s == 0
    assert found.checkpoint_s == 1
    assert found.between_attempts_s == 100 - 23
    assert found.preemptions == 1
    assert found.wall_s == 23 + 23


def test_steps_since_a_killed_rank_last_told_its_time_are_lost_too() -> None:
    # Steps are short: the progress is told, and where the time went is not yet.
    killed = Attempt(0).begin(1, 0, 1).spend(16, step=2).progress(20).progress(40).progress(3, unit="images").events
    again = Attempt(100).begin(1, 16, 1).progress(20)
    assert account([killed]).steps == 40
    found = account([killed, again.events])
    assert (found.lost_steps, found.steps) == (24, 20)
    # Before a first checkpoint, and in one attempt.
    attempt = Attempt(0).begin(1, 0, 1).progress(50).begin(5, 0, 1).spend(60, step=6)
    assert account([attempt.exit(1)]).lost_steps == 50
    # What is told beside a life that is not known belongs to none.
    stray = Attempt(0)
    stray.progress(50)
    assert account([stray.events, again.events]).lost_steps == 0


def test_preemptions_are_agreed_stops_and_attempts_that_ended_without_a_word() -> None:
    agreed = Attempt(0).begin(0, 0, 0, nodes=4).spend(10, step=1800).stop(10).exit(0, 75)
    silent = Attempt(5000).begin(0, 10, 0, nodes=4).spend(20, step=1800).events
    goes_on = Attempt(9000).begin(0, 20, 0, nodes=4).spend(30, step=1800).events
    found = account([agreed, silent, goes_on])
    assert found.preemptions == 2
    assert found.node_hours == 6
    assert found.preemptions_per_node_hour == pytest.approx(1 / 3, abs=1e-4)


def test_an_attempt_that_found_a_finished_training_is_left_out() -> None:
    done = Attempt(0).begin(1, 0, 1).spend(5, step=5).exit(1)
    found_it = Attempt(100)
    found_it.emit("reused", uri="u")
    assert account([done, found_it.exit(1)]) == account([done])
    assert account([]).wall_s == 0


def test_any_one_lost_event_leaves_a_training_accounted_for() -> None:
    """An event log loses lines on a full disk; without this the whole line of such a training ended with KeyError."""
    first = Attempt(10).begin(2, 0, 3).spend(10, step=8, data=1)
    first.begin(4, 10, 1).spend(20, step=6).stop(20)
    events = first.exit(1, 75)
    whole = account([events])
    for lost in range(len(events)):
        found = account([events[:lost] + events[lost + 1 :]])
        assert all(getattr(found, name) >= 0 for name in CLASS_NAMES), events[lost]
        assert sum(getattr(found, name) for name in CLASS_NAMES) == pytest.approx(found.wall_s, abs=0.01), events[lost]
        if events[lost]["event"] == "life":
            assert (found.steps, found.starts, found.productive_s) == (whole.steps, whole.starts, whole.productive_s)
