"""TensorBoard's files of a report, read back by TensorBoard."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from contracts.artifacts import ProfileChoice, ProfilePoint, ProfileReport
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
    )


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def test_each_measured_configuration_is_a_row_without_what_was_not_measured(tmp_path: Path) -> None:
    write_board(tmp_path, report())
    folders = sorted((tmp_path / "configurations").iterdir())
    assert len(folders) == 2
    board = read(folders[0])
    assert board.Scalars("profile/samples_per_s")[0].value == 900
    assert "profile/usd_per_million_samples" not in board.Tags()["scalars"]
    plugin = board.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data
    hparams = metadata.parse_session_start_info_plugin_data(plugin.content).hparams
    assert hparams["slot_size"].number_value == 32 and hparams["chosen"].bool_value is True
