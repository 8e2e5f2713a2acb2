"""What a profile counts of texts."""

from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from contracts.artifacts import Settings, ShardManifest
from contracts.config.load import parse_config
from tests.trainer.tasks.text_classification.texts import BERT, sections
from trainer.model.build import build_model
from trainer.profiling.probe import RankProbe
from trainer.tasks.load import load_task


def test_operations_are_those_of_texts_as_long_as_the_shards_have(text_shards: str, tmp_path: Path) -> None:
    """The example is as long as what engines are tuned for: here twice as long as any slot."""
    values = sections(
        task={"arguments": {"max_length": 128}},
        model={"arguments": {**BERT, "max_position_embeddings": 128}},
        profile={"window_s": 0.05},
    )
    values.pop("sharding")
    config = parse_config(values, where="test")
    with RankProbe(config, shards=text_shards, ranks=1, threads=1) as running:
        traced = running.trace(Settings(slot_size=4, num_workers=0), steps=0, folder=tmp_path)
    assert isinstance(traced, list)
    found = traced[0].flops_per_sample
    task = load_task(config, ShardManifest.load(text_shards), text_shards)
    model, counted = build_model(task, config).eval(), {}
    for length in (8, 64, 128):
        tokens = torch.ones(1, length, dtype=torch.int64)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(tokens, tokens)
        counted[length] = 3 * counter.get_total_flops()
    assert found is not None and counted[8] < found <= counted[64] < counted[128]
