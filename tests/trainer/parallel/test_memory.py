"""The memory of a rank falls with their number: a network of 67 MB, sharded by FSDP2 over two and over four ranks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WIDTH, BLOCKS = 1448, 8
NETWORK_MB = 4 * WIDTH * WIDTH * BLOCKS / 1e6

PROGRAM = f"""
import gc
import json
import sys
from pathlib import Path

import torch

from tests.trainer.parallel.runs import CLASSES, Run, make_config
from tests.trainer.tasks.for_tests import task_of
from trainer.model.precision import Numerics
from trainer.parallel.process_group import process_group
from trainer.step import Stepper


def memory_mb(field):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1e3


torch.set_num_threads(1)
model = {{"architecture": "tests.trainer.parallel.networks:" + sys.argv[1], "arguments": {{}}}}
model["arguments"] = {{"width": {WIDTH}, "num_blocks": {BLOCKS}}}
with process_group(0, setup_timeout_s=120) as rank:
    config = make_config(model, {{"ema_decay": 0.9}}, strategy="fsdp", slot_size=20)
    before = memory_mb("VmRSS")
    # The peak of what was imported is no part of it.
    Path("/proc/self/clear_refs").write_text("5")
    stepper = Stepper(config, task_of(config, CLASSES), rank, Numerics.of(config.train), print)
    built = memory_mb("VmHWM") - before
    del stepper
    gc.collect()
    Run(config, rank).step(2)
    print(json.dumps([rank.rank, built, memory_mb("VmHWM") - before]), flush=True)
"""


def peaks_mb(ranks: int, network: str = "Plain") -> tuple[list[float], list[float]]:
    """Return each rank's peak of memory above what it had before, once it has the network and once it has trained."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    # glibc would raise the size from which memory goes back to the system with each large piece that is freed.
    environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, network],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, outputs
    found = sorted(json.loads(output.splitlines()[-1]) for output, _ in outputs)
    return [built for _, built, _ in found], [trained for _, _, trained in found]


@pytest.mark.slow
def test_the_peak_of_every_rank_but_the_first_falls_with_their_number() -> None:
    two, four = peaks_mb(2), peaks_mb(4)
    # Parameters and average; with gradients and the two moments of AdamW. All but the blocks that are gathered is rows.
    for copies, of_two, of_four in zip((2, 5), two, four, strict=True):
        saved = copies * NETWORK_MB * (1 / 2 - 1 / 4)
        assert max(of_four[1:]) < of_two[1] - 0.8 * saved, (copies, of_two, of_four)
