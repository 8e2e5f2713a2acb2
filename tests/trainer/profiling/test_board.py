"""TensorBoard's files of a report, read back by TensorBoard."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from contracts.artifacts import ComputePoint, Indicators, LoaderPoint, ProfileChoice, ProfilePoint, ProfileReport
from trainer.profiling.board import write_board


def report() -> ProfileReport:
    return ProfileReport(
        fingerprint="f",
        model_fingerprint="m",
        shards_fingerprint="s",
        hardware={},
        torch_version="2",
        ranks=2,
        threads_per_rank=1,
        global_batch_size=64,
        points=[
            ProfilePoint(slot_size=32, num_workers=1, samples_per_s=900.0, data_time_fraction=0.1),
            ProfilePoint(slot_size=32, num_workers=0, samples_per_s=700.0),
            ProfilePoint(slot_size=64, num_workers=0, outcome="out of memory"),
        ],
        choice=ProfileChoice(slot_size=32, num_workers=1, reason="r"),
        loader=[LoaderPoint(num_workers=0, slot_size=32, samples_per_s=1200.0)],
        compute=[ComputePoint(slot_size=32, samples_per_s=1000.0), ComputePoint(slot_size=64, outcome="crashed")],
        indicators=Indicators(step_s=0.1),
    )


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_has_the_reports_numbers_and_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    write_board(tmp_path, report())
    board = read(tmp_path)
    scalars = {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    assert scalars["choice/samples_per_s"] == [(0, 900)] and scalars["choice/slot_size"] == [(0, 32)]
    assert scalars["loader/samples_per_s"] == [(0, 1200)] and scalars["compute/samples_per_s"] == [(32, 1000)]
    assert scalars["indicators/step_s"] == [(0, pytest.approx(0.1))]
    assert "indicators/mfu" not in scalars and "compute/memory_bytes" not in scalars
    # Each measured configuration is a row of HParams.
    folders = sorted((tmp_path / "configurations").iterdir())
    assert len(folders) == 2
    board = read(folders[0])
    assert board.Scalars("profile/samples_per_s")[0].value == 900
    plugin = board.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data
    hparams = metadata.parse_session_start_info_plugin_data(plugin.content).hparams
    assert hparams["slot_size"].number_value == 32 and hparams["chosen"].bool_value is True
