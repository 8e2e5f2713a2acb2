"""`inspect.samples: hide`: what a training and the pages of its run leave behind holds nothing of what samples hold."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from components.describe import describe
from components.entry import OUTPUTS
from components.task import Task
from contracts import storage
from contracts.artifacts import PREDICTIONS_NAME, RunRecord
from contracts.config import STAGES, RunConfig
from contracts.config.load import parse_config
from contracts.fingerprint import export_inputs, profile_inputs, shard_inputs, train_inputs
from contracts.own_code import append_code
from inspection.page import render_report
from inspection.report import to_markdown
from inspection.run.find import find_place
from inspection.run.read import read_run
from inspection.run.view import shows_samples
from inspection.terminal import print_run
from tests.conftest import OWN_CODE, small_config
from tests.inspection.lines import plant
from tests.page_text import part, said
from tests.trainer.one_rank import one_rank, train
from tests.trainer.tasks.texts import make_shards, make_texts
from tests.trainer.tasks.texts import sections as text_sections
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
    """Train, put the result into a line with all other stages, and write all that tells of it; return the line.

    That is: the page of the run, what the terminal prints, and the artifacts of each stage.
    """
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
    (pages / "report.md").write_text(to_markdown(RunRecord.load(storage.normalise(planted.folder / "run.json"))))
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
    task = Task.parse(json.dumps({"outputs": outputs}))
    describe(task, config, stage, OUTPUTS[stage], uri)
    task.finish()


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
            found += [f"{tag} in {name}" for tag in tags]
            needles_here = tuple(one for one in needles if one not in PICTURES)
        else:
            needles_here = needles
        content = path.read_bytes()
        found += [f"{needle!r} in {name}" for needle in needles_here if needle in content]
    return found


def test_pictures_are_nowhere(rank: Rank, small_shards: str, tmp_path: Path) -> None:
    found = {}
    for samples in ("show", "hide"):
        config = small_config(inspect={"samples": samples}, train={"epochs": 1})
        found[samples] = find_content(leave(rank, tmp_path / samples, small_shards, config), PICTURES)
    assert found["hide"] == []
    # The search finds them where they are shown.
    shown = "\n".join(found["show"])
    for place in ("pages/run.html", f"reports/shard/{RUN}/out/page", "pages/view.json"):
        assert f" in {place}" in shown
    assert "images/first_slot in " in shown
    pages = {samples: (tmp_path / samples / "runs/photos/pages/run.html").read_text() for samples in found}
    assert "Samples are hidden (inspect.samples)." in pages["hide"]
    # What the network got of the first samples.
    assert ['id="first-slot"' in page for page in pages.values()] == [True, False]


# Where the content of the worst samples stands, when it is shown: on pages, and in what they are made of.
SHOWN_ON = ("pages/run.html", "pages/view.json", f"reports/train/{RUN}/out/page")


def test_texts_of_an_own_task_are_nowhere(rank: Rank, tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    own = {**words_config(), "model": {}, "inspect": {"samples": "hide"}}
    config = {**small_config(train={"epochs": 1, "global_batch_size": 8}), **own, "data": {"num_workers": 0}}
    line = leave(rank, tmp_path / "hide", shards, config)
    assert find_content(line, tuple(text_of(number).encode() for number in range(80))) == []


def needles_of(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Return text as files have it: as it is, as HTML, as JSON."""
    forms = {form for one in texts for form in (one, html.escape(one), json.dumps(one)[1:-1])}
    return tuple(one.encode() for one in sorted(forms))


def check_shown_and_hidden(rank: Rank, folder: Path, shards: str, config: dict[str, Any], texts: list[str]) -> None:
    """Assert that texts are on pages of a run that shows them, and nowhere in one that hides them."""
    found = {}
    for samples in ("show", "hide"):
        line = leave(rank, folder / samples, shards, {**config, "inspect": {"samples": samples}})
        found[samples] = find_content(line, (*PICTURES, *needles_of(texts)))
    assert found["hide"] == []
    # The search finds them where they are shown, and there are no images to be found.
    assert not [one for one in found["show"] for picture in PICTURES if one.startswith(f"{picture!r} in ")]
    places = {one.rpartition(" in ")[2] for one in found["show"]}
    # The beginning of each row is in test-predictions.parquet, where short ones are whole.
    places = {place for place in places if not place.endswith(f"/{PREDICTIONS_NAME}")}
    assert places == set(SHOWN_ON), found["show"]
    page = (folder / "hide" / "runs" / "photos" / "pages" / "run.html").read_text()
    assert "Samples are hidden (inspect.samples)." in page and "not shown" in page
    for samples in ("show", "hide"):
        check_words(folder / samples / "runs" / "photos")


def check_words(line: Path) -> None:
    """Assert that pages of a run without images speak of none.

    The sweep is planted with its findings, and the configuration names whatever there is.
    """
    terminal = (line / "pages" / "inspect.txt").read_text().splitlines()
    told = ["\n".join(row for row in terminal if not row.startswith("finding "))]
    told += [(line / "reports" / stage / RUN / "out" / "summary").read_text() for stage in STAGES if stage != "profile"]
    for page in (*line.glob("pages/*.html"), *line.glob("reports/*/*/out/page")):
        content = page.read_text()
        told += [
            said(part(content, section))
            for section in ("overview", "data", "curves", "time", "results", "export", "lineage")
        ]
    assert len(told) == 4 + 7 * 5
    for words in told:
        assert not re.search(r"\b(images?|pictures?|pixels?)\b", words, re.IGNORECASE), words


def test_texts_are_shown_or_nowhere(rank: Rank, tmp_path: Path) -> None:
    rows = make_texts(60)
    shards = make_shards(tmp_path, rows)
    config = text_sections(train={"epochs": 1}, run={"name": "photos"})
    # Whole: a word or two may be in a tokenizer.
    check_shown_and_hidden(rank, tmp_path, shards, config, [text for text, _ in rows if len(text.split()) > 3])


def test_it_is_in_no_fingerprint_and_hides_where_nothing_is_known() -> None:
    shown, hidden = RunConfig(), RunConfig.model_validate({"inspect": {"samples": "hide"}})
    assert train_inputs(shown, shards="s") == train_inputs(hidden, shards="s")
    assert shard_inputs(shown, "l") == shard_inputs(hidden, "l")
    found = [export_inputs(one, checkpoint="c", builder="b", tools={}) for one in (shown, hidden)]
    assert found[0] == found[1]
    measured = {"shards": "s", "hardware": {}, "torch_version": "2"}
    assert profile_inputs(shown, **measured) == profile_inputs(hidden, **measured)  # type: ignore[arg-type]
    assert [shows_samples(one.model_dump(mode="json")) for one in (shown, hidden)] == [True, False]
    # A run of an earlier release knows no such section; one whose documents cannot be read may have it.
    assert shows_samples({"run": {}}) and not shows_samples({}) and not shows_samples({"inspect": "hide"})
