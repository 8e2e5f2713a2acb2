"""Why a rank ended: a peer that is gone is nobody's mistake, whatever its loss is wrapped in."""

import json
import subprocess
import sys
from pathlib import Path

# Rank 0 meets the real errors of gloo and of the store, each from a peer of its own that was killed.
RANKS = """
import ctypes, json, os, signal, sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from contracts.config import ResourcesSection
from contracts.errors import ConfigError, ErrorDocument
from contracts.events import EventLog
from trainer.supervise.supervisor import RankSupervisor

folder, ranks = Path(sys.argv[1]), 4
# One import of torch for all of them.
rank = next((rank for rank in range(1, ranks) if os.fork() == 0), 0)
if rank:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
store = dist.FileStore(str(folder / "store"), ranks)
dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
pairs = [dist.new_group([0, peer], timeout=timedelta(seconds=2)) for peer in range(1, ranks)]
for peer, pair in enumerate(pairs, 1):
    if rank in (0, peer):
        dist.barrier(group=pair)
spread = None
if rank in (0, 1):
    spread = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=pairs[0])
if rank == 3:
    signal.pause()
if rank > 0:
    (folder / f"gone-{rank}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while len(list(folder.glob("gone-*"))) < 2:
    pass

def compiled():
    try:
        spread(torch.ones(1, 2)).sum().backward()
    except RuntimeError as error:
        raise ConfigError("torch.compile failed", allowed="a", todo="b") from error

def hidden():
    try:
        dist.broadcast_object_list([None], src=2, group=pairs[1])
    except RuntimeError as error:
        raise ConfigError(f"it failed: {error}", allowed="a", todo="b") from None

def mistake():
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        raise ConfigError("the model does not fit", allowed="a", todo="b") from error

cases = {
    "wrapped as a user's mistake": compiled,
    "its text only": hidden,
    "does not answer": lambda: dist.all_reduce(torch.ones(1), group=pairs[2]),
    "store": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True).wait(["nothing"], timedelta(seconds=1)),
    "no peer": lambda: torch.ones(2) @ torch.ones(3),
    "a user's mistake": mistake,
}
events = EventLog(folder, stage="train", attempt="a")
found = {}
with RankSupervisor(ResourcesSection(), events, rank=0, local_rank=0, record=print) as supervisor:
    for name, case in cases.items():
        try:
            case()
        except Exception as error:
            why = supervisor.explain(error)
            found[name] = [type(why).__name__, ErrorDocument.of(why).exit_code, str(why)]
print(json.dumps(found), flush=True)
os._exit(0)
"""


def test_a_lost_peer_is_worth_another_attempt_however_it_arrives(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("wrapped as a user's mistake", "its text only", "does not answer", "store"):
        kind, code, message = found.pop(name)
        assert (kind, code) == ("TryAgain", 75), (name, message)
        assert "another rank is gone or does not answer" in message, name
    assert {name: why[:2] for name, why in found.items()} == {
        "no peer": ["RuntimeError", 70],
        "a user's mistake": ["ConfigError", 2],
    }
