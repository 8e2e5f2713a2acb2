"""Machines as containers and laptops are: a host name that does not resolve, a small /dev/shm.

`python -m tests.trainer.launch.test_machines_as_they_are FOLDER` is a process of such a machine.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.config import ResourcesSection
from contracts.errors import UserError
from trainer.data.loader import SlotBatch, SlotDataset, make_loader, read_slots
from trainer.data.order.cursor import SlotRequest, slot_requests
from trainer.data.order.resolve import FullOrder
from trainer.launch.assignment import Assignment
from trainer.launch.nodes import find_nodes
from trainer.launch.torchrun import RANK_MODULE, torchrun_command

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


def start_ranks(folder: Path) -> list[str]:
    """Have torchrun start ranks that write down where they would meet; return that."""
    from torch.distributed.run import main as torchrun

    assignment = Assignment(
        config={},
        shards="file:///shards",
        profile=None,
        folder="file:///training",
        fingerprint="f",
        made_from={},
        attempt="a",
        attempt_folder=str(folder),
        ranks=2,
        threads=1,
    )
    command = torchrun_command(folder / "assignment", assignment, find_nodes({}, ResourcesSection()), 60)
    options = command[command.index("trainer.launch.agent") + 2 : command.index(RANK_MODULE) - 1]
    torchrun([*options, "--no-python", "sh", "-c", f"echo $MASTER_ADDR > {folder}/$RANK"])
    return [(folder / name).read_text().strip() for name in ("0", "1")]


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
    """torchrun waited for itself, by a name that nobody knows."""
    assert found["ranks meet at"] == ["127.0.0.1"] * 2


def test_a_small_shared_memory(found: dict[str, Any]) -> None:
    """A batch that does not fit was dropped, and waited for until hang_timeout_s."""
    assert found["fits"] == [SMALL_BYTES // 8] * 4
    assert found["too large"].startswith("2: /dev/shm (2 MB, 2 MB of them free) has no room for a batch")
    assert "--shm-size" in found["too large"]


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "fits": read(SMALL_BYTES // 8),
                "too large": read(2 * SMALL_BYTES),
                "ranks meet at": start_ranks(Path(sys.argv[1])),
            }
        )
    )
