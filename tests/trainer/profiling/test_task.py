"""The stage on real shards: what it chooses for what was planted, what it leaves, and what it refuses."""

import gzip
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from contracts import storage
from contracts.artifacts import ProfileReport, ShardManifest, find_damage
from contracts.stage import run_stage
from inspection.profile_page import make_profile_page
from sharding.task import shard
from tests.conftest import small_config
from tests.page_text import absent, figures, said
from trainer.profiling.task import execute

REPOSITORY = Path(__file__).parents[3]
PLANTED = "tests.trainer.profiling.planted"
VIEWS = ("Overview and step-time breakdown", "Timeline", "Kernels", "Memory", "Operators")


def profile(
    shards: str, folder: Path, *arguments: str, ranks: int = 1, nodes: int = 1, traced: bool = False, **sections: Any
) -> int:
    sections["data"] = {"num_workers": "auto", "prefetch_factor": 2, **sections.get("data", {})}
    sections["profile"] = {"window_s": 0.05, **sections.get("profile", {})}
    sections["parallel"] = {"slot_size": "auto", **sections.get("parallel", {})}
    values = small_config(resources={"ranks": ranks, "nodes": nodes, "threads": 1}, **sections)
    text = json.dumps({name: value for name, value in values.items() if name != "sharding"})
    # A trace takes time, and is few tests' business.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.profiling.diagnosis.TRACE_STEPS", 2 if traced else 0)
        return run_stage(
            "profile", execute, ["--output", str(folder), "--shards", shards, "--config-json", text, *arguments]
        )


def report_of(folder: Path) -> ProfileReport:
    return ProfileReport.load(storage.normalise(folder))


def page_of(folder: Path) -> Path:
    """Render the page of a report, beside its folder."""
    uri, page = storage.normalise(folder), folder.parent / "profile.html"
    page.write_text(make_profile_page(ProfileReport.load(uri), uri))
    return page


def digits_config(folder: Path) -> dict[str, Any]:
    """Return the demo's configuration as it is in the tree, with small windows, few knobs and a price."""
    values: dict[str, Any] = yaml.safe_load((REPOSITORY / "configs/digits.yaml").read_text())
    values["sharding"]["source"] = str(folder / "raw")
    values["profile"] = {**values.get("profile", {}), "window_s": 0.05}
    values["resources"] = {**values.get("resources", {}), "ranks": 2, "price_usd_per_h": 3.0}
    return values


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """URI of the shards of the demo's digits, and the arguments of their profile; read only."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, "examples/digits.py", str(folder / "raw")], check=True, cwd=REPOSITORY)
    values = digits_config(folder)
    sharding = json.dumps({name: values[name] for name in ("run", "sharding")})
    assert run_stage("shard", shard, ["--output", str(folder / "shards"), "--config-json", sharding]) == 0
    shards = storage.normalise(folder / "shards")
    text = json.dumps({name: value for name, value in values.items() if name != "sharding"})
    return shards, ["--shards", shards, "--config-json", text]


@pytest.fixture(scope="module")
def profiled(digits: tuple[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a profile of the digits by two ranks; read only."""
    folder = tmp_path_factory.mktemp("profiled") / "out"
    assert run_stage("profile", execute, ["--output", str(folder), *digits[1]]) == 0
    return folder


def test_the_report_has_the_choice_its_reason_and_every_part(profiled: Path, digits: tuple[str, list[str]]) -> None:
    report = report_of(profiled)
    chosen = report.chosen_point()
    assert chosen.samples_per_s and chosen.slots_per_rank * chosen.slot_size * 2 >= report.global_batch_size == 64
    assert f"{report.choice.reason}" and report.method == "sweep" and report.wall_s and report.wall_s > 0
    assert 0 in {point.num_workers for point in report.loader}
    assert len({point.slot_size for point in report.compute}) >= 2
    # The network has BatchNorm.
    assert min(point.slot_size for point in [*report.compute, *report.points]) == 16
    assert report.memory[0].limit_bytes and report.memory[0].base_bytes > 0
    # The training split twelve times, by two ranks, for three dollars an hour.
    samples = 12 * ShardManifest.load(digits[0]).splits["train"].samples
    assert report.estimate is not None and report.estimate.samples == samples and report.estimate.usd
    assert report.estimate.hours == pytest.approx(samples / (2 * chosen.samples_per_s) / 3600)
    assert report.estimate.usd == pytest.approx(3 * report.estimate.hours)
    assert chosen.usd_per_million_samples == pytest.approx(3 / 3600 / (2 * chosen.samples_per_s) * 1e6)


def test_what_this_machine_cannot_measure_is_not_there(profiled: Path) -> None:
    found = report_of(profiled).indicators
    assert found.step_s and found.data_time_fraction is not None and found.flops_per_sample
    assert found.communication_fraction is not None and found.checkpoint_stall_fraction is not None
    for name in (
        "gpu_busy_fraction",
        "occupancy_fraction",
        "mfu",
        "exposed_copy_fraction",
        "nvml_utilisation_fraction",
    ):
        assert getattr(found, name) is None


def test_traces_of_all_ranks_open_and_name_no_host(profiled: Path) -> None:
    report = report_of(profiled)
    names = [file.name for file in report.files]
    assert "trace-summary.json" in names and not any(name.endswith(".html") for name in names)
    traces = sorted(name for name in names if re.fullmatch(r"traces/rank-\d\.\d{13}\.pt\.trace\.json\.gz", name))
    detailed = sorted(name for name in names if name.startswith("traces/details/rank-"))
    assert [name[:13] for name in traces] == ["traces/rank-0", "traces/rank-1"] and len(detailed) == 2
    summaries = json.loads((profiled / "trace-summary.json").read_text())
    assert [summary["rank"] for summary in summaries] == [0, 1]
    assert all(summary["memory"] and summary["operators"] and summary["step_s"] for summary in summaries)
    assert any(name.startswith("tensorboard/") for name in names)
    assert find_damage(storage.normalise(profiled), report.files) is None
    for rank in range(2):
        text = gzip.decompress((profiled / traces[rank]).read_bytes()).decode()
        steps = {event["name"] for event in json.loads(text)["traceEvents"] if "ProfilerStep" in event["name"]}
        assert len(steps) == 4
        assert socket.gethostname() not in text


def test_the_page_of_the_digits_shows_the_report(profiled: Path) -> None:
    report, page = report_of(profiled), page_of(profiled).read_text()
    found = figures(page)
    assert found["choice.slot_size"] == report.choice.slot_size
    assert found["choice.num_workers"] == report.choice.num_workers
    assert found["choice.samples_per_s"] == report.chosen_point().samples_per_s
    check_views(page)


@pytest.mark.line
def test_the_page_of_an_input_bound_photo_set_says_that_steps_wait(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "raw")
    sharding = json.dumps({"sharding": {"source": str(photos), "splits": {"train": 1, "validation": 0, "test": 0}}})
    assert run_stage("shard", shard, ["--output", str(tmp_path / "shards"), "--config-json", sharding]) == 0
    data = {"image_size": 16, "transform": f"{PLANTED}:slow_image", "num_workers": 0}
    shards, out = storage.normalise(tmp_path / "shards"), tmp_path / "out"
    assert profile(shards, out, data=data, traced=True, profile={"slot_sizes": [8]}) == 0
    report = report_of(out)
    [finding] = [finding for finding in report.findings if finding.rule == "R1"]
    assert finding.severity in ("bad", "warning") and report.indicators.data_time_fraction
    page = page_of(out).read_text()
    found = figures(page)
    assert found["indicators.data_time_fraction"] == report.indicators.data_time_fraction >= 0.2
    assert found["choice.samples_per_s"] == report.chosen_point().samples_per_s
    check_views(page)
    assert finding.title in said(page)


def check_views(page: str) -> None:
    """Five views, one of them without data here, and it says why."""
    headings, empty = re.findall(r"<h2[^>]*>([^<]*)</h2>", page), absent(page)
    assert [name for name in headings if name in VIEWS] == list(VIEWS)
    assert "no GPU" in empty["kernels"] and "timeline" not in empty and "operators" not in empty


def write_photos(folder: Path) -> Path:
    """Write JPEG files of 1,200 x 900 pixels, two classes of eight."""
    for name, seed in (("cats", 0), ("dogs", 1)):
        (folder / name).mkdir(parents=True)
        random = np.random.default_rng(seed)
        for number in range(8):
            coarse = Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8))
            coarse.resize((1200, 900), Image.Resampling.BICUBIC).save(folder / name / f"{number}.jpg", quality=90)
    return folder


def test_the_same_is_reused_and_other_cores_are_not_the_same(
    profiled: Path, digits: tuple[str, list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (profiled / "manifest.json").read_bytes()
    arguments = ["--output", str(profiled), *digits[1]]
    assert run_stage("profile", execute, arguments) == 0
    assert (profiled / "manifest.json").read_bytes() == before
    monkeypatch.setattr("trainer.profiling.task.hardware", lambda: {"cores": "96", "cpu": "other", "gpus": "none"})
    assert run_stage("profile", execute, arguments) == 2
    assert "holds a result of other inputs (hardware)" in capfd.readouterr().err


# --- what was planted ------------------------------------------------------------------------------------------------


def test_num_workers_rises_for_a_loader_that_sleeps_and_one_machine_that_stands_for_two_estimates_nothing(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = {"data": {"transform": f"{PLANTED}:slow_image"}, "profile": {"num_workers": [0, 3], "slot_sizes": [4]}}
    assert profile(small_shards, tmp_path / "out", nodes=2, **slow) == 0
    report, said = report_of(tmp_path / "out"), capfd.readouterr().err
    assert report.choice.num_workers == 3
    (warning,) = (each for each in report.warnings if each.startswith("one machine was measured for 2"))
    assert warning in said and report.estimate is None


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"profile": {"num_workers": [0, 1]}, "data": {"num_workers": 3}}, "data.num_workers"),
        ({"profile": {"slot_sizes": [64]}}, "profile.slot_sizes"),
    ],
)
def test_a_space_with_nothing_in_it_is_refused(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], sections: dict[str, Any], words: str
) -> None:
    assert profile(small_shards, tmp_path / "out", **sections) == 2
    said = capfd.readouterr().err
    assert words in said and "allowed:" in said and "to do:" in said
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_budget_that_ends_before_the_start_leaves_the_defaults_and_a_warning(
    small_shards: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert profile(small_shards, tmp_path / "out", profile={"budget_s": 1}) == 0
    report = report_of(tmp_path / "out")
    choice = report.choice
    assert (choice.measured, choice.slot_size, choice.num_workers, choice.threads) == (False, 16, 0, 1)
    assert report.chosen_point().samples_per_s is None and not report.points and report.estimate is None
    (warning,) = report.warnings
    assert "profile.budget_s 1 ended before the processes had started" in warning and "profile: off" in warning
    assert warning in capfd.readouterr().err
    assert report.files == []
    assert "these are the values that training has by default" in page_of(tmp_path / "out").read_text()
