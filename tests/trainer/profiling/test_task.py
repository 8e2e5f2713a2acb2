"""The profile stage on real shards: its report and files, reuse, and refusals."""

import gzip
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ProfileReport, ShardManifest, find_damage
from contracts.stage import run_stage
from tests.conftest import small_config
from trainer.profiling.task import execute

REPOSITORY = Path(__file__).parents[3]


def profile(shards: str, folder: Path, **sections: Any) -> int:
    sections["data"] = {"num_workers": "auto", **sections.get("data", {})}
    sections["parallel"] = {"slot_size": "auto", **sections.get("parallel", {})}
    sections["resources"] = {"ranks": 1, "threads": 1, **sections.get("resources", {})}
    values = {name: value for name, value in small_config(**sections).items() if name != "sharding"}
    options = ["--output", str(folder), "--shards", shards, "--config-json", json.dumps(values)]
    return run_stage("profile", execute, options)


def report_of(folder: Path) -> ProfileReport:
    return ProfileReport.load(storage.normalise(folder))


# --- two ranks, one of them short of memory, measured once ------------------------------------------------------------

MEASURED: dict[str, Any] = {
    "model": {
        "architecture": "tests.trainer.profiling.planted:PlantedNetwork",
        "arguments": {"starved_rank": 1, "starved_at": 8},
    },
    "train": {"global_batch_size": 32, "epochs": 12},
    "profile": {"method": "sweep", "window_s": 0.05, "slot_sizes": [2, 4, 8, 16], "num_workers": [0, 1]},
    "resources": {"ranks": 2, "price_usd_per_h": 3.0},
}


@pytest.fixture(scope="module")
def profiled(small_shards: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a profile; read only."""
    folder = tmp_path_factory.mktemp("profiled") / "out"
    assert profile(small_shards, folder, **MEASURED) == 0
    return folder


def test_the_report_has_the_choice_its_reason_and_every_part(profiled: Path, small_shards: str) -> None:
    report = report_of(profiled)
    chosen = report.chosen_point()
    assert report.choice.measured and chosen.samples_per_s and chosen.slot_size in (2, 4)
    assert chosen.slots_per_rank * chosen.slot_size * 2 == report.global_batch_size == 32
    assert report.choice.reason and report.method == "sweep" and report.wall_s and report.wall_s > 0
    assert report.loader[0].num_workers == 0 and all(point.samples_per_s for point in report.loader)
    # All ranks know, and a larger one is not tried.
    outcomes = {point.slot_size: point.outcome for point in report.compute}
    assert outcomes == {2: "measured", 4: "measured", 8: "out of memory"}
    assert all(point.memory_bytes for point in report.compute if point.outcome == "measured")
    # The training split twelve times, by two ranks, for three dollars an hour.
    samples = 12 * ShardManifest.load(small_shards).splits["train"].samples
    assert report.estimate is not None and report.estimate.samples == samples and report.estimate.usd
    assert report.estimate.hours == pytest.approx(samples / (2 * chosen.samples_per_s) / 3600)
    assert chosen.usd_per_million_samples == pytest.approx(3 / 3600 / (2 * chosen.samples_per_s) * 1e6)
    # Not measured on a CPU, and not 0.
    indicators = report.indicators
    assert indicators.step_s and indicators.data_time_fraction is not None and indicators.flops_per_sample
    assert indicators.gpu_busy_fraction is None and indicators.mfu is None and indicators.exposed_copy_fraction is None


def test_traces_of_all_ranks_and_tensorboards_files_belong_to_the_report(profiled: Path) -> None:
    report = report_of(profiled)
    names = [file.name for file in report.files]
    traces = [name for name in names if re.fullmatch(r"traces/rank-\d\.pt\.trace\.json\.gz", name)]
    assert len(traces) == 2 and any(name.startswith("tensorboard/configurations/") for name in names)
    assert find_damage(storage.normalise(profiled), report.files) is None
    summaries = json.loads((profiled / "trace-summary.json").read_text())
    assert [summary["rank"] for summary in summaries] == [0, 1]
    assert all(summary["memory"] and summary["operators"] and summary["step_s"] for summary in summaries)
    for name in traces:
        text = gzip.decompress((profiled / name).read_bytes()).decode()
        assert "ProfilerStep" in text and socket.gethostname() not in text


def test_the_same_is_reused_and_other_cores_are_not_the_same(
    profiled: Path, small_shards: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (profiled / "manifest.json").read_bytes()
    assert profile(small_shards, profiled, **MEASURED) == 0
    assert (profiled / "manifest.json").read_bytes() == before
    monkeypatch.setattr("trainer.profiling.task.hardware", lambda: {"cores": "96", "cpu": "other", "gpus": "none"})
    assert profile(small_shards, profiled, **MEASURED) == 2
    assert "holds a result of other inputs (hardware)" in capfd.readouterr().err


def test_the_stages_own_process_imports_no_torch() -> None:
    """It takes seconds of the demo's twelve."""
    program = "import sys, trainer.profiling.task; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, timeout=60).returncode == 0


# --- without a measurement -------------------------------------------------------------------------------------------


def test_a_space_with_nothing_in_it_is_refused(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert profile(small_shards, tmp_path / "out", profile={"slot_sizes": [64]}) == 2
    output = capfd.readouterr().err
    assert "profile.slot_sizes" in output and "allowed:" in output and "to do:" in output
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_budget_that_ends_before_the_start_leaves_the_defaults_and_a_warning(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert profile(small_shards, tmp_path / "out", profile={"budget_s": 1}) == 0
    report = report_of(tmp_path / "out")
    assert (report.choice.measured, report.choice.slot_size, report.choice.num_workers) == (False, 16, 0)
    assert report.chosen_point().samples_per_s is None and not report.points and report.estimate is None
    (warning,) = report.warnings
    assert "profile.budget_s 1 ended before the ranks started" in warning and "profile: off" in warning
    assert warning in capfd.readouterr().err
    assert report.files == []
