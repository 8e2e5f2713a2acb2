"""`inspect.samples: hide`: nothing that a training, its report and its artifacts leave holds what samples hold."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from components.describe import describe
from components.task import OUTPUTS, Task
from contracts import storage
from contracts.artifacts import PREDICTIONS_NAME
from contracts.config import STAGES, RunConfig
from contracts.config.load import parse_config
from contracts.fingerprint import export_inputs, profile_inputs, shard_inputs, train_inputs
from contracts.own_code import append_code
from inspection.find import find_place
from inspection.read import read_run
from inspection.report.page import render_report
from inspection.terminal import print_run
from inspection.view import shows_samples
from tests.conftest import OWN_CODE, small_config
from tests.inspection.lines import plant
from tests.trainer.one_rank import one_rank, train
from tests.trainer.tasks.texts import make_shards, make_texts
from tests.trainer.tasks.texts import sections as text_sections
from trainer.parallel.process_group import Rank

# First bytes of images, and their form in a page and in a view.
PICTURES = (b"\xff\xd8\xff", b"\x89PNG", b"data:image/", b'"jpeg":')
RUN = "20261122-070000-0001"


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    append_code(OWN_CODE)
    with one_rank() as rank:
        yield rank


def leave(rank: Rank, folder: Path, shards: str, config: dict[str, Any]) -> Path:
    """Train, and leave report, terminal and artifacts of a run with that training; return the line."""
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
    with (pages / "inspect.txt").open("w") as stream:
        print_run(view, stream)
    for stage in STAGES:
        describe_stage(line, stage, planted.uris[stage])
    return line


def describe_stage(line: Path, stage: str, uri: str) -> None:
    """Leave the artifacts of a stage's task in LINE/reports/STAGE/RUN/out."""
    folder = storage.normalise(line / "reports" / stage / RUN / "out")
    names = (OUTPUTS[stage], "metrics", "summary", "page", *(["classes"] if stage == "train" else []))
    artifacts = {name: {"artifacts": [{"uri": f"{folder}/{name}"}]} for name in names}
    outputs = {"artifacts": artifacts, "outputFile": f"{folder}/executor_output.json"}
    config = parse_config({"run": {"root": str(line.parent), "name": line.name}}, where="test")
    task = Task(json.dumps({"outputs": outputs}))
    describe(task, config, stage, uri)
    task.finish()


def find_content(line: Path, needles: tuple[bytes, ...]) -> set[str]:
    """Return the files that hold a needle, or images in TensorBoard's format; the shards hold samples."""
    places = set()
    for path in sorted(line.rglob("*")):
        name = path.relative_to(line).as_posix()
        if path.is_dir() or name.startswith("shard/") or path.suffix == ".safetensors":
            continue
        content, searched = path.read_bytes(), needles
        if "tfevents" in name:
            # Numbers, drawn.
            places |= {f"{tag} in {name}" for tag in EventAccumulator(str(path)).Reload().Tags()["images"]}
            searched = tuple(needle for needle in needles if needle not in PICTURES)
        places |= {name for needle in searched if needle in content}
    return places


def needles_of(texts: list[str]) -> tuple[bytes, ...]:
    """Return text as files have it: as it is, as HTML, as JSON."""
    forms = {form for text in texts for form in (text, html.escape(text), json.dumps(text)[1:-1])}
    return tuple(form.encode() for form in sorted(forms))


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_samples_are_shown_or_nowhere(kind: str, rank: Rank, small_shards: str, tmp_path: Path) -> None:
    shards, config, needles = small_shards, small_config(train={"epochs": 1}), PICTURES
    if kind == "texts":
        rows = make_texts(60)
        shards, config = make_shards(tmp_path, rows), text_sections(train={"epochs": 1}, run={"name": "photos"})
        # Whole: a word or two may be in a tokenizer.
        needles = needles_of([text for text, _ in rows if len(text.split()) > 3])
    places, reports = {}, {}
    for samples in ("show", "hide"):
        line = leave(rank, tmp_path / samples, shards, {**config, "inspect": {"samples": samples}})
        places[samples] = find_content(line, needles)
        reports[samples] = (line / "pages" / "run.html").read_text()
    assert places["hide"] == set()
    hidden = "Samples are hidden (inspect.samples)."
    assert [hidden in reports[samples] for samples in ("show", "hide")] == [False, True]
    # The search finds them where they are shown.
    shown = {place for place in places["show"] if not place.endswith(f"/{PREDICTIONS_NAME}")}
    worst = {"pages/run.html", "pages/view.json", f"reports/train/{RUN}/out/page.html"}
    if kind == "images":
        assert shown >= worst
        assert any(place.startswith("images/first_slot in ") for place in shown)
    else:
        assert shown == worst


def test_it_is_in_no_fingerprint_and_hides_where_nothing_is_known() -> None:
    shown, hidden = RunConfig(), RunConfig.model_validate({"inspect": {"samples": "hide"}})
    assert train_inputs(shown, shards="s") == train_inputs(hidden, shards="s")
    assert shard_inputs(shown, "l") == shard_inputs(hidden, "l")
    found = [export_inputs(one, checkpoint="c", builder="b", tools={}) for one in (shown, hidden)]
    assert found[0] == found[1]
    measured = {"shards": "s", "hardware": {}, "torch_version": "2"}
    assert profile_inputs(shown, **measured) == profile_inputs(hidden, **measured)  # type: ignore[arg-type]
    assert [shows_samples(one.model_dump(mode="json")) for one in (shown, hidden)] == [True, False]
    # A run whose documents cannot be read may hide them.
    assert not shows_samples({}) and not shows_samples({"inspect": "hide"})
