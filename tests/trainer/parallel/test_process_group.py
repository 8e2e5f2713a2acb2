"""What ranks do together besides steps, on two real ones: wait for the first, agree on a checkpoint, time out."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from contracts.errors import ConfigError
from trainer.parallel.process_group import abort_process_group, choose_device

# One import of torch for both ranks. What rank 1 has found is in a file.
RANKS = """
import ctypes, json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from contracts import storage, stores
from contracts.config import CheckpointSection
from tests.trainer.checkpoint.attempts import Attempt, groups, manifest
from trainer.checkpoint.commit import Peers
from trainer.checkpoint.interval import Schedule
from trainer.checkpoint.manager import CheckpointManager
from trainer.parallel.process_group import Rank, limit_collectives
from trainer.supervise import vote
from trainer.supervise.signals import StopCause, StopRequest

folder = Path(sys.argv[1])
Attempt(folder).save(1, 2)
rank = 1 if os.fork() == 0 else 0
if rank:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
TIMEOUT_S = 4.0
store = dist.FileStore(str(folder / "store"), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT_S))
found = {}

# --- a checkpoint that the first rank reads for longer than any rank waits

def slow_read(uri, generation=None):
    stream = open_read(uri, generation)
    read = stream.read
    class Slow:
        def read(self, size): time.sleep(0.4); return read(size)
        def __enter__(self): return self
        def __exit__(self, *error): stream.close()
    return Slow()

signs = []
open_read, storage.open_read, stores.PIECE_BYTES = storage.open_read, slow_read, 32
manager = CheckpointManager(
    storage.normalise(folder),
    attempt="b",
    rules=CheckpointSection(every_s=0.5),
    peers=Peers(rank, 2),
    alive=lambda: signs.append(time.monotonic()),
)
begun = time.monotonic()
resumed = manager.resume()
found["resumed"] = [resumed.manifest.step, time.monotonic() - begun, manager._committer.number]
found["signs"] = len(signs)
storage.open_read = open_read

# --- checkpoints by time, at the same steps on ranks of other speeds; a vote at every step

vote.VOTE_EVERY_S = 0.0
stop = StopRequest()
schedule = Schedule(CheckpointSection(every_s=0.5), manager, is_first=rank == 0)
votes = vote.Vote(stop, Rank(rank, rank, 2, torch.device("cpu")), timeout_s=30, schedule=schedule)
found["due"] = []
for step in range(1, 151):
    schedule.restart()
    time.sleep(0.01 if rank == 0 else 0.005)
    schedule.step_taken()
    agreed = votes.step_done()
    if schedule.is_due(step):
        found["due"].append(step)
        manager.save(manifest(step), groups(step))
        schedule.saved()
    if step == 140 and rank == 1:
        stop.want(StopCause.SIGUSR1)
    if agreed:
        found["stopped"] = [step, agreed.words]
        break
manager.wait()

# --- time-outs

own = dist.new_group(timeout=timedelta(seconds=77))
limit_collectives(55, besides=own)
limits = lambda group: group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
found["limits"] = [limits(dist.group.WORLD), limits(votes._group), limits(own)]
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
        step, seconds, number = found["resumed"]
        assert (step, number) == (2, 2)
        assert seconds > 4 and found["signs"] >= 2, "longer than a collective may take, with signs of life"
    assert first["due"] == second["due"]
    assert len(first["due"]) >= 2
    gaps = [after - before for before, after in zip(first["due"], first["due"][1:], strict=False)]
    assert min(gaps) > 5, "what was proposed before a checkpoint does not make another"
    assert first["stopped"] == second["stopped"]
    assert first["stopped"][0] in (141, 142) and "rank 1" in first["stopped"][1]
    assert first["limits"] == second["limits"] == [55, 55, 77]


@pytest.mark.parametrize(("local_rank", "gpus", "device"), [(0, 0, "cpu"), (1, 2, "cuda:1")])
def test_the_device_of_a_rank(local_rank: int, gpus: int, device: str) -> None:
    assert choose_device(local_rank, gpus=gpus) == torch.device(device)


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="rank 2 of this machine, which has 2 GPUs"):
        choose_device(2, gpus=2)


def test_a_group_is_aborted_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abort_process_group(), "there is none"
    # Two names make it one of several backends, as on a GPU.
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert abort_process_group() and not dist.is_initialized()
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    hangs = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(distributed_c10d, "_abort_process_group", hangs.wait)
        assert not abort_process_group(limit_s=0.1)
    hangs.set()
    dist.destroy_process_group()
