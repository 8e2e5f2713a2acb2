"""What a profile counts of texts."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from contracts import storage
from contracts.artifacts import ProfileReport, ShardManifest
from contracts.resolve import parse_config
from contracts.stage import run_stage
from tests.trainer.tasks.text_classification.texts import BERT, sections
from trainer.model.build import build_model
from trainer.profiling.task import execute
from trainer.tasks.load import load_task


@pytest.mark.timeout(300)
def test_operations_are_those_of_texts_as_long_as_the_shards_have(text_shards: str, tmp_path: Path) -> None:
    """The example is as long as what engines are tuned for: here twice as long as any slot."""
    values = sections(
        task={"arguments": {"max_length": 128}},
        model={"arguments": {**BERT, "max_position_embeddings": 128}},
        profile={
            "window_s": 0.05,
            "num_workers": [0],
            "prefetch_factors": [2],
            "slot_sizes": [4],
            "threads": [1],
            "precisions": ["fp32"],
            "activation_checkpointing": ["none"],
        },
    )
    values.pop("sharding")
    arguments = ["--shards", text_shards, "--config-json", json.dumps(values)]
    assert run_stage("profile", execute, ["--output", str(tmp_path / "out"), *arguments]) == 0
    found = ProfileReport.load(storage.normalise(tmp_path / "out")).indicators.flops_per_sample
    config = parse_config(values, where="test")
    task = load_task(config, ShardManifest.load(text_shards), text_shards)
    model, counted = build_model(task, config).eval(), {}
    for length in (8, 64, 128):
        tokens = torch.ones(1, length, dtype=torch.int64)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(tokens, tokens)
        counted[length] = 3 * counter.get_total_flops()
    assert found is not None and counted[8] < found <= counted[64] < counted[128]
