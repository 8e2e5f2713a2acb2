"""What ranks do together besides steps, on two real ones: wait for the first, agree on a checkpoint, abort."""

import json
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.trainer.one_rank import one_rank
from trainer.parallel import process_group
from trainer.parallel.process_group import abort_process_group

# One import of torch for both ranks. What a rank has found is in a file.
RANKS = """
import ctypes, json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.config import CheckpointSection
from trainer.checkpoint.manager import Schedule
from trainer.parallel.process_group import Rank, on_first_rank
from trainer.supervise import vote
from trainer.supervise.stop import StopCause, StopRequest

folder = Path(sys.argv[1])
rank = 1 if os.fork() == 0 else 0
if rank:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
store = dist.FileStore(str(folder / "store"), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=3))
found = {}

# --- the first rank works for longer than a collective may take

def work(alive):
    for _ in range(12):
        time.sleep(0.4)
        alive()
    return "the result"

signs, begun = [], time.monotonic()
found["result"] = on_first_rank(rank, 2, work, lambda: signs.append(1))
found["waited_s"], found["signs"] = time.monotonic() - begun, len(signs)

# --- checkpoints by time, at the same steps on ranks of other speeds; a vote at every step

vote.VOTE_EVERY_S = 0.0
stop = StopRequest()
schedule = Schedule(CheckpointSection(every_s=0.5), is_first=rank == 0)
votes = vote.Vote(stop, Rank(rank, rank, 2, torch.device("cpu")), timeout_s=30, schedule=schedule)
found["due"] = []
for step in range(1, 151):
    time.sleep(0.01 if rank == 0 else 0.005)
    agreed = votes.step_done()
    if schedule.is_due(step):
        found["due"].append(step)
        schedule.saved()
    if step == 140 and rank == 1:
        stop.request(StopCause.SIGUSR1)
    if agreed:
        found["stopped"] = [step, agreed.description]
        break

(folder / f"found-{rank}.json").write_text(json.dumps(found))
dist.barrier()
os._exit(0)
"""


def test_ranks_wait_for_the_first_and_agree_on_checkpoints(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    for found in (first, second):
        assert found["result"] == "the result"
        assert found["waited_s"] > 4 and found["signs"] >= 2, "longer than a collective may take, with signs of life"
    assert first["due"] == second["due"]
    assert len(first["due"]) >= 2
    gaps = [after - before for before, after in pairwise(first["due"])]
    assert min(gaps) > 5, "what was proposed before a checkpoint does not make another"
    assert first["stopped"] == second["stopped"]
    assert first["stopped"][0] in (141, 142) and "rank 1" in first["stopped"][1]


def test_the_store_waits_for_set_up_and_the_group_for_a_collective() -> None:
    with one_rank():
        group = distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert distributed_c10d._get_default_store().timeout.total_seconds() == 50
        assert group.options._timeout.total_seconds() == 60


def test_a_group_is_aborted_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abort_process_group(), "there is none"
    # Two names make it one of several backends, as on a GPU.
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert abort_process_group() and not dist.is_initialized()
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    hangs = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(distributed_c10d, "_abort_process_group", hangs.wait)
        patch.setattr(process_group, "ABORT_LIMIT_S", 0.1)
        assert not abort_process_group()
    hangs.set()
    dist.destroy_process_group()
