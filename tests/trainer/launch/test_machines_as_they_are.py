"""Machines as containers and laptops are: a host name that does not resolve, a small /dev/shm.

`python -m tests.trainer.launch.test_machines_as_they_are FOLDER` is a process of such a machine.
"""

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.config import ResourcesSection
from contracts.errors import ForwardedError, UserError
from tests.trainer.launch.machines import make_assignment
from trainer.data.cursor import SlotRequest, slot_requests
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.order import FullOrder
from trainer.launch.attempts import JobRecord
from trainer.launch.launcher import Launcher, run_ranks
from trainer.launch.nodes import find_nodes
from trainer.worker import HOOKS_VARIABLE

NAMESPACES = ("unshare", "--user", "--map-root-user", "--uts", "--mount")
# Of a container that was started without --shm-size it is 64 MB.
SMALL_BYTES = 2 << 20


class Batches(SlotDataset):
    """Gives batches of a size, of no samples."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def read(self, request: SlotRequest) -> SlotBatch:
        images = torch.ones(self.num_bytes, dtype=torch.uint8)
        return SlotBatch(request, {"images": images, "more": [torch.empty(0), images[:2]]})


def read(num_bytes: int) -> list[int] | str:
    """Return the sums of batches that a loader process has passed on, or why it could not."""
    requests = slot_requests(0, order=FullOrder(8, seed=0), epochs=1, global_batch_size=2, slot_size=2, rank=0, ranks=1)
    loader = make_loader(Batches(num_bytes), requests, num_workers=1, prefetch_factor=1, pin_memory=False)
    try:
        return [int(slot.batch["images"].sum()) for slot in read_slots(loader)]
    except UserError as error:
        return f"{error.exit_code}: {error}"


def start_ranks(folder: Path) -> list[list[str]]:
    """Start two ranks as a launcher does; return the addresses at which they meet, read from their environments."""
    section = ResourcesSection(max_attempts=1)
    launcher = Launcher(make_assignment(folder), find_nodes({}, section), section, JobRecord("file:///jobs", ""), print)
    with suppress(ForwardedError):
        run_ranks(launcher)
    return [(folder / f"{rank}.met").read_text().split() for rank in (0, 1)]


def meet(rank: int, attempt: str) -> None:
    """Join the process group as a rank does, and write down how many are there."""
    from trainer.parallel.process_group import process_group

    with process_group(setup_timeout_s=60, timeout_s=60) as joined:
        path = Path(os.environ["MEETING"]) / f"{rank}.met"
        path.write_text(f"{os.environ['MASTER_ADDR']} {joined.ranks}")
    os._exit(0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process finds on such a machine: one import of torch for all cases."""
    prepare = f"hostname no-such-host && mount -t tmpfs -o size={SMALL_BYTES} none /dev/shm"
    probe = subprocess.run([*NAMESPACES, "sh", "-c", prepare], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"a process has no host name and /dev/shm of its own here: {probe.stderr.strip()}")
    folder = tmp_path_factory.mktemp("machine")
    child = [sys.executable, "-m", "tests.trainer.launch.test_machines_as_they_are", str(folder)]
    command = [*NAMESPACES, "sh", "-c", f"{prepare} && exec {shlex.join(child)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_a_host_name_that_does_not_resolve(found: dict[str, Any]) -> None:
    """torchrun waits for itself there, by a name that nobody knows."""
    assert found["ranks meet at"] == [["127.0.0.1", "2"]] * 2


def test_a_small_shared_memory(found: dict[str, Any]) -> None:
    """A batch that does not fit was dropped, and waited for until hang_timeout_s."""
    assert found["fits"] == [SMALL_BYTES // 8] * 4
    assert found["too large"].startswith("2: /dev/shm (2 MB, 2 MB of them free) has no room for a batch")
    assert "--shm-size" in found["too large"]


if __name__ == "__main__":
    os.environ |= {"MEETING": sys.argv[1], HOOKS_VARIABLE: "tests.trainer.launch.test_machines_as_they_are:meet"}
    print(
        json.dumps(
            {
                "fits": read(SMALL_BYTES // 8),
                "too large": read(2 * SMALL_BYTES),
                "ranks meet at": start_ranks(Path(sys.argv[1])),
            }
        )
    )
