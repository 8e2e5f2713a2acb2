"""What a rank takes of its machine's cache."""

from pathlib import Path

import pytest
import torch

from contracts.config.load import parse_config
from tests.conftest import small_config
from tests.trainer.data.conftest import BUCKET_SHARDS
from trainer.data.training_data import TrainingData
from trainer.launch import Assignment
from trainer.launch.auto import BatchLayout
from trainer.parallel.process_group import Rank

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.mark.usefixtures("bucket_shards")
def test_ranks_of_other_machines_take_no_share_of_the_cache(tmp_path: Path) -> None:
    cache = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": 1 << 20}
    values = small_config(
        data={"order": "blocks", "range_bytes": 4096, "block_bytes": 4096, "canonical_streams": 2, **cache}
    )

    def budget(ranks: int, nodes: int) -> int:
        assignment = Assignment(
            config=values,
            shards=BUCKET_SHARDS,
            profile=None,
            folder=str(tmp_path),
            fingerprint="",
            made_from={},
            attempt="a",
            attempt_folder=str(tmp_path),
            ranks=ranks,
            threads=1,
            nodes=nodes,
        )
        rank = Rank(0, 0, assignment.world_size, torch.device("cpu"))
        feed = TrainingData(assignment, parse_config(values, where="test"), rank, lambda line: None)
        feed.choose_order(BatchLayout(4, 0, ""), None)
        return feed.prefetcher(0)._budget

    alone = budget(1, 1)
    assert budget(1, 4) == alone
    assert budget(2, 2) == budget(2, 1) <= alone // 2
