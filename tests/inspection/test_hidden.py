"""`inspect.samples: hide`: what a training and the pages of its run leave behind holds nothing of what samples hold."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts import storage
from contracts.config import STAGES, RunConfig
from contracts.fingerprint import export_inputs, profile_inputs, shard_inputs, train_inputs
from contracts.own_code import append_code
from inspection.page import render_report
from inspection.run.find import find_place
from inspection.run.read import read_run
from inspection.run.view import shows_samples
from inspection.stage_report import make_page
from inspection.ui.addresses import RunKey
from inspection.ui.store import RunStore
from tests.conftest import OWN_CODE, small_config
from tests.inspection.lines import plant
from tests.trainer.one_rank import one_rank, train
from tests.trainer.texts import text_of, words_config, write_shards
from trainer.parallel.process_group import Rank

# How files of images begin, and how they do in a page.
PICTURES = (b"\xff\xd8\xff", b"\x89PNG", b"data:image/", b'"jpeg":')
RUN = "20261122-070000-0001"


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    append_code(OWN_CODE)
    with one_rank() as rank:
        yield rank


def leave(rank: Rank, folder: Path, shards: str, config: dict[str, Any]) -> Path:
    """Train, put the result into a line with all other stages, and write all pages of it; return the line."""
    train(rank, folder, shards, config)
    line = folder / "runs" / "photos"
    planted = plant(line, shards, sections={name: config[name] for name in ("inspect", "task") if name in config})
    trained = storage.local_path(planted.uris["train"])
    shutil.rmtree(trained)
    shutil.copytree(folder / "out", trained)
    view = read_run(find_place(str(planted.folder)))
    assert view.evaluation is not None and view.evaluation.samples > 0, view.missing
    pages = line / "pages"
    pages.mkdir()
    (pages / "view.json").write_text(view.model_dump_json())
    (pages / "run.html").write_text(render_report(view))
    for stage in STAGES:
        (pages / f"{stage}.html").write_text(make_page(view, stage)[0])
    shown = asyncio.run(RunStore(str(folder / "runs")).show(RunKey("photos", RUN)))
    (pages / "ui.html").write_text(shown.body)
    return line


def find_content(line: Path, needles: tuple[bytes, ...]) -> list[str]:
    """Return where sample content is: files that hold a needle, and images in TensorBoard's, by their tags.

    The shards hold samples; the profile's page is none of the run's data.
    """
    found = []
    for path in sorted(line.rglob("*")):
        name = path.relative_to(line).as_posix()
        if path.is_dir() or name.startswith("shard/") or path.suffix == ".safetensors":
            continue
        if "tfevents" in name:
            tags = EventAccumulator(str(path)).Reload().Tags()["images"]
            # Numbers, drawn.
            found += [f"{tag} in {name}" for tag in tags if tag != "test/confusion_matrix"]
            needles_here = tuple(one for one in needles if one not in PICTURES)
        else:
            needles_here = needles
        content = path.read_bytes()
        found += [f"{needle!r} in {name}" for needle in needles_here if needle in content]
    return found


@pytest.mark.parametrize("task", ["image_classification", "pictured:Redness"])
def test_pictures_are_nowhere(rank: Rank, small_shards: str, tmp_path: Path, task: str) -> None:
    found = {}
    for samples in ("show", "hide"):
        best = {} if task == "image_classification" else {"checkpoint": {"best_metric": "validation_squares"}}
        config = small_config(task={"name": task}, inspect={"samples": samples}, train={"epochs": 1}, **best)
        found[samples] = find_content(leave(rank, tmp_path / samples, small_shards, config), PICTURES)
    assert found["hide"] == []
    # The search finds them where they are shown.
    shown = "\n".join(found["show"])
    for place in ("pages/run.html", "pages/shard.html", "pages/ui.html", "pages/view.json"):
        assert f" in {place}" in shown
    if task == "image_classification":
        assert "images/first_slot in " in shown and "test/worst_images in " in shown
    else:
        assert "test/first in " in shown and "/pictures/first.png" in shown
    page = (tmp_path / "hide" / "runs" / "photos" / "pages" / "run.html").read_text()
    assert "Samples are hidden (inspect.samples)." in page


def test_texts_are_nowhere(rank: Rank, tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    own = {**words_config(), "model": {}, "inspect": {"samples": "hide"}}
    config = {**small_config(train={"epochs": 1, "global_batch_size": 8}), **own, "data": {"num_workers": 0}}
    line = leave(rank, tmp_path / "hide", shards, config)
    assert find_content(line, tuple(text_of(number).encode() for number in range(80))) == []


def test_it_is_in_no_fingerprint_and_hides_where_nothing_is_known() -> None:
    shown, hidden = RunConfig(), RunConfig.model_validate({"inspect": {"samples": "hide"}})
    assert train_inputs(shown, shards="s") == train_inputs(hidden, shards="s")
    assert shard_inputs(shown, "l") == shard_inputs(hidden, "l")
    assert export_inputs(shown, checkpoint="c", builder="b") == export_inputs(hidden, checkpoint="c", builder="b")
    measured = {"shards": "s", "hardware": {}, "torch_version": "2"}
    assert profile_inputs(shown, **measured) == profile_inputs(hidden, **measured)  # type: ignore[arg-type]
    assert [shows_samples(one.model_dump(mode="json")) for one in (shown, hidden)] == [True, False]
    # A run of an earlier release knows no such section; one whose documents cannot be read may have it.
    assert shows_samples({"run": {}}) and not shows_samples({}) and not shows_samples({"inspect": "hide"})
