"""Vertex AI's TensorBoard is fed while training runs: the folder that the platform names grows before the end."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts import storage
from inspection.training import read_curves
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.trainer.test_task import command
from trainer.task import TENSORBOARD_VARIABLE

LINE = "gs://bucket-1/line"
BOARD = "gs://bucket-1/jobs/1/logs"
# Training as it is, copied more often than every 30 s.
TASK = "import runpy; import contracts.attempts as attempts; attempts.COPY_INTERVAL_S = 0.2; {}"
RUN = "runpy.run_module('trainer.task', run_name='__main__', alter_sys=True)"
DEADLINE_S = 240


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_the_folder_that_the_platform_names_grows_while_training_runs(
    small_shards: str, tmp_path: Path, bucket_server: BucketServer
) -> None:
    # More epochs than it can take before it is told to stop.
    config = small_config(train={"epochs": 100_000})
    arguments = command(Path("/"), small_shards, "a", config, "--events", str(tmp_path))[3:]
    arguments[arguments.index("--root") + 1] = f"{LINE}/train"
    environment = {**os.environ, TENSORBOARD_VARIABLE: f"{BOARD}/"}
    process = subprocess.Popen(
        [sys.executable, "-c", TASK.format(RUN), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        seen: list[int] = []
        sizes: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        # The same files, longer as it goes on.
        while min(len(seen), len(sizes)) < 2 and process.poll() is None and time.monotonic() < deadline:
            sizes |= {info.size for info in storage.list_objects(BOARD)}
            name = next((info.name for info in storage.list_objects(LINE) if "/scalars/" in info.name), None)
            if name is not None:
                curves, problems = read_curves(f"{LINE}/{name.rpartition('/')[0]}")
                loss = next((curve.rows for curve in curves if curve.name == "train/loss"), 0)
                assert not any("damaged" in said for said in problems)
                seen += [loss] * (loss > (seen[-1] if seen else 0))
            time.sleep(0.1)
        assert process.poll() is None, "training runs on"
        assert min(len(seen), len(sizes)) >= 2
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 75, said
    finally:
        process.kill()
        process.communicate()
    # The last rows are there too, and it is one file.
    (local,) = tmp_path.glob("**/tensorboard/*tfevents*")
    assert sorted(storage.list_names(BOARD)) == [local.name]
    assert storage.read_bytes(storage.join(BOARD, local.name)) == local.read_bytes()
    (kept,) = (info for info in storage.list_objects(LINE) if "tfevents" in info.name)
    assert kept.size == local.stat().st_size
    gc.collect()
