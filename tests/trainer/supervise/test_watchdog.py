"""A rank that hangs is found: its section and its stacks."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., "subprocess.Popen[str]"]

# A rank without torch: what watches it needs none.
RANK = """
import resource, signal, sys, time
from pathlib import Path
from contracts.config import ResourcesSection
from contracts.events import EventLog
from trainer.supervise.supervisor import RankSupervisor

folder = Path(sys.argv[1])
events = EventLog(folder, stage="train", attempt="a")
# Shorter than anybody may set it.
resources = ResourcesSection(stop_budget_s=1).model_copy(update={"hang_timeout_s": 1.0})
record = lambda document: (folder / "end.json").write_text(document.model_dump_json())
with RankSupervisor(resources, events, rank=0, local_rank=0, record=record) as supervisor:
    account = supervisor.account
    account.resume(7, number=1, ranks=1, nodes=1)
    if "full disk" in sys.argv:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        account.emit_time()
    def stuck_in_here():
        account.sections.enter(sys.argv[2])
        print("stuck", flush=True)
        time.sleep(600)
    stuck_in_here()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a rank that is stuck in a section when this returns."""
    with ExitStack() as ending:

        def begin(section: str, *more: str, stderr: Any = subprocess.PIPE) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", RANK, str(tmp_path), section, *more]
            process = ending.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True))
            ending.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            return process

        yield begin


def test_a_section_beyond_its_limit_ends_the_rank(start: Start, tmp_path: Path) -> None:
    process = start("data")
    assert process.wait(timeout=120) == 75
    stacks = (tmp_path / "0.stacks.txt").read_text()
    assert "stuck_in_here" in stacks
    assert "rank 0 was in section data" in stacks
    document = (tmp_path / "end.json").read_text()
    assert '"Hung"' in document
    assert "(limit 1 s) at step 7" in document
    assert '"hang"' in (tmp_path / "events.jsonl").read_text()


def test_a_signal_ends_a_rank_that_cannot_vote_within_its_budget_or_has_nothing_to_save(
    start: Start, tmp_path: Path
) -> None:
    process = start("step")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75
    document = (tmp_path / "end.json").read_text()
    assert '"Preempted"' in document
    assert "told to stop by SIGTERM, and within 1 s (resources.stop_budget_s)" in document
    assert "in section step" in document
    process = start("restore")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=120) == 75
    assert "told to stop by SIGUSR1 in section restore, with nothing to save" in (tmp_path / "end.json").read_text()


def test_a_full_disk_neither_ends_a_rank_nor_keeps_it_from_ending(start: Start, tmp_path: Path) -> None:
    """Nothing can be written: the rank lives on, is watched, and still ends when it hangs or is told to stop."""
    hangs = start("data", "full disk")
    with (tmp_path / "log.txt").open("w") as log:
        process = start("step", "full disk", stderr=log)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    _, printed = hangs.communicate(timeout=60)
    assert hangs.returncode == 75, printed
    assert re.search(r"rank 0 was in section data for \d\.\d s", printed)
