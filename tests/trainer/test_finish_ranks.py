"""The end of training on two ranks: the second waits for as long as the first one publishes."""

import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
from pyarrow import parquet

from contracts import storage
from contracts.artifacts import CheckpointManifest, ShardManifest
from tests.conftest import small_config
from tests.trainer.one_rank import make_training
from trainer import finish
from trainer.data.reader import ShardReader
from trainer.parallel.process_group import Rank, limit_collectives, process_group

# Longer than a sign of life takes, and shorter than the publishing.
LIMIT_S, PIECE_S = 3.0, 2.0


def be_rank(number: int, port: int, folder: Path, shards: str) -> None:
    torch.set_num_threads(1)
    own = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    os.environ |= {**own, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with process_group(setup_timeout_s=60) as rank:
        train(rank, folder, shards)


def train(rank: Rank, folder: Path, shards: str) -> None:
    config = small_config(train={"epochs": 1}, resources={"ranks": 2})
    training = make_training(rank, folder / str(rank.rank), shards, config, output=storage.normalise(folder / "out"))
    training.run()
    limit_collectives(LIMIT_S)
    for name in ("write_result", "parameters_sha256"):
        setattr(finish, name, slow(getattr(finish, name)))
    finish.finish(training)


def slow(function: Any) -> Any:
    def slowed(*arguments: Any) -> Any:
        time.sleep(PIECE_S)
        return function(*arguments)

    return slowed


def test_ranks_wait_while_the_first_one_publishes(small_shards: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not forked: a worker of pytest may have threads of gRPC, whose locks a child would inherit.
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=be_rank, args=(number, port, tmp_path, small_shards)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in ranks] == [0, 0]
    result = CheckpointManifest.load(storage.normalise(tmp_path / "out"))
    assert result.finished and result.predictions is not None
    # The outcomes of both ranks, in the order of the split.
    table = parquet.read_table(tmp_path / "out" / result.predictions.name).to_pydict()
    reader = ShardReader(small_shards, ShardManifest.load(small_shards), "test")
    assert table["key"] == [reader.origin_of(place)[1] for place in range(len(reader))]
    hits = [label == answer for label, answer in zip(table["label"], table["answer"], strict=True)]
    assert sum(hits) / len(hits) == result.metrics["test_accuracy"]
    assert all(path.startswith(f"{label}/") for path, label in zip(table["path"], table["label"], strict=True))
