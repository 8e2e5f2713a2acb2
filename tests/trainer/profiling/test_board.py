"""What TensorBoard's own readers find of a profiling run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from tests.trainer.profiling.reports import cpu_report, gpu_report
from trainer.profiling.board import MAX_CONFIGURATIONS, write_board


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    board = read(folder)
    return {tag: {event.step: event.value for event in board.Scalars(tag)} for tag in board.Tags()["scalars"]}


def settings(folder: Path) -> dict[str, object]:
    """Return a run's hyperparameters as the HParams plugin stores them."""
    plugin = read(folder).summary_metadata["_hparams_/session_start_info"].plugin_data
    start = plugin_data_pb2.HParamsPluginData.FromString(plugin.content).session_start_info
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def test_scalars_are_the_numbers_of_the_report(tmp_path: Path) -> None:
    report = gpu_report()
    write_board(tmp_path, report)
    found = scalars(tmp_path)
    assert found["indicators/gpu_busy_fraction"] == {0: pytest.approx(0.58)}
    assert found["indicators/allocation_retries"] == {0: 0}, "measured, and 0"
    assert found["choice/num_workers"] == {0: 4}
    assert found["choice/samples_per_s"] == {0: pytest.approx(report.chosen_point().samples_per_s, rel=1e-6)}
    assert found["loader/samples_per_s"] == {n: pytest.approx(60 + 170 * n) for n in (0, 1, 2, 4, 8)}
    assert sorted(found["compute/samples_per_s"]) == [16, 32, 64, 128], "256 did not fit: it has no rate"
    assert found["compute/memory_bytes"][64] == 2**30 + 64 * 90 * 2**20
    measured = {i: p.samples_per_s for i, p in enumerate(report.points) if p.samples_per_s is not None}
    assert found["configurations/measured_samples_per_s"] == pytest.approx(measured, rel=1e-6)
    assert len(found["configurations/predicted_samples_per_s"]) == 20
    assert found["sweep/predictor_error"] == {0: pytest.approx(0.062)}


def test_what_was_not_measured_is_not_there(tmp_path: Path) -> None:
    write_board(tmp_path, cpu_report())
    found = scalars(tmp_path)
    assert "indicators/data_time_fraction" in found
    assert "indicators/gpu_busy_fraction" not in found
    assert "sweep/overlap" not in found
    assert "loader/samples_per_s" not in found


def test_every_measured_configuration_is_a_row_of_hparams(tmp_path: Path) -> None:
    report = gpu_report()
    write_board(tmp_path, report)
    best = sorted((p for p in report.points if p.samples_per_s is not None), key=lambda p: -(p.samples_per_s or 0))
    runs = sorted((tmp_path / "configurations").iterdir())
    assert len(runs) == len(best) == 9
    for run, point in zip(runs, best, strict=True):
        row = settings(run)
        assert row["slot_size"] == point.slot_size
        assert row["num_workers"] == point.num_workers
        assert row["precision"] == "bf16"
        assert row["channels_last"] is True
        assert row["chosen"] is (point == report.chosen_point())
        assert scalars(run)["profile/samples_per_s"] == {0: pytest.approx(point.samples_per_s, rel=1e-6)}


def test_of_a_large_grid_the_fastest_are_rows(tmp_path: Path) -> None:
    report = cpu_report()
    point = report.points[0]
    many = [point.model_copy(update={"slot_size": i + 1, "samples_per_s": float(i)}) for i in range(1, 80)]
    write_board(tmp_path, report.model_copy(update={"points": many}))
    runs = sorted((tmp_path / "configurations").iterdir())
    assert len(runs) == MAX_CONFIGURATIONS
    assert settings(runs[0])["slot_size"] == 80


def test_no_file_names_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "planted-host-name")
    write_board(tmp_path, gpu_report())
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 10
    for path in found:
        assert path.name == "events.out.tfevents.0000000000.profile"
        assert b"planted-host-name" not in path.read_bytes()
