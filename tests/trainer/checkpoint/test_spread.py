"""Tensors cut over two gloo ranks: each writes its rows, rank 0 commits; any number of ranks reads them."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from contracts import storage
from tests.trainer.checkpoint.attempts import committed
from trainer.checkpoint.discovery import find_newest, list_checkpoints
from trainer.checkpoint.loading import load_group, load_rows
from trainer.checkpoint.tensors import Rows

# The rows of rank 1 begin at 3; its thread can be told to fail.
PROGRAM = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
from contracts import storage
from contracts.config import CheckpointSection
from contracts.errors import TryAgain
from tests.trainer.checkpoint.attempts import manifest
from trainer.checkpoint.commit import Peers
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.tensors import Rows

folder, fails = sys.argv[1], sys.argv[2] == "fails"
# One import of torch for both ranks.
second = os.fork()
rank = 0 if second else 1
store = dist.FileStore(sys.argv[3], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=120))
group = dist.new_group(backend="gloo", timeout=timedelta(seconds=120))
manager = CheckpointManager(
    folder,
    attempt="a",
    rules=CheckpointSection(),
    peers=Peers(rank, 2, group),
    log=lambda said: print(said, flush=True),
)
found = manager.resume()
publish = storage.publish_stream
for step in (1, 2):
    whole = torch.arange(10.0).reshape(5, 2) * step
    mine = whole[:3] if rank == 0 else whole[3:]
    groups = {
        "model": {"w": Rows(mine, (5, 2), 3 * rank), "empty": Rows(whole[5 * rank : 5], (5, 2), 5 * rank),
                  "buffer": torch.tensor([step * 10.0 + rank])},
        "scaler": {"scale": torch.tensor(float(step))},
    }
    if fails and rank == 1 and step == 2:
        def refuse(*arguments):
            raise TryAgain("rank 1 has no bucket")
        storage.publish_stream = refuse
    began = manager.save(manifest(step), groups, required=True)
    assert began
    try:
        manager.wait()
    except TryAgain as error:
        print("FAILED", error, flush=True)
dist.barrier()
# One write: the other rank has the same pipe.
sys.stdout.write(f"RESUMED {found.manifest and found.manifest.step} {manager._committer.number}\\n")
sys.stdout.flush()
if not second:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 0
"""


def run(folder: Path, how: str) -> str:
    folder.mkdir(exist_ok=True)
    store = folder.parent / f"store-{len(list(folder.parent.glob('store-*')))}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, storage.normalise(folder), how, str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_two_ranks_write_one_checkpoint_that_any_number_reads(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    run(folder, "works")
    uri = storage.join(storage.normalise(folder), "checkpoints")
    found = find_newest(uri, list_checkpoints(uri))
    assert found.manifest is not None
    assert found.manifest.step == 2
    assert [file.name for file in found.manifest.files] == [
        "model-00000-of-00002.safetensors",
        "scaler.safetensors",
        "model-00001-of-00002.safetensors",
    ]
    whole = load_group(found.uri, found.manifest, "model")
    assert torch.equal(whole["w"], torch.arange(10.0).reshape(5, 2) * 2)
    assert torch.equal(whole["empty"], whole["w"])
    # Rank 0's by rule.
    assert whole["buffer"].tolist() == [20.0]
    for rank in range(3):
        bounds = (5 * rank // 3, 5 * (rank + 1) // 3)
        part = load_rows(
            found.uri, found.manifest, "model", lambda group, name, shape, b=bounds: b if len(shape) > 1 else (0, 1)
        )["w"]
        assert isinstance(part, Rows)
        assert torch.equal(part.tensor, whole["w"][bounds[0] : bounds[1]])
    # The next attempt of both ranks agrees on it, and on its own number.
    said = run(folder, "works")
    assert said.count("RESUMED 2 2") == 2
    assert json.loads((folder / "checkpoints" / "attempt-000002.json").read_text())["step"] == 2


def test_nothing_is_committed_when_one_rank_fails(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    said = run(folder, "fails")
    assert committed(folder) == [1]
    assert "could not be written (TryAgain: rank 1 could not write its part: TryAgain: rank 1 has no bucket)" in said
    assert not list(folder.glob("checkpoints/step-00000002.*"))
