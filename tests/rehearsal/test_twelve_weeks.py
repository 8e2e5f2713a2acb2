"""Twelve weeks of a schedule on the rehearsed cloud, with what a team meets in them.

Digits come in week by week. Each firing is a whole run by Google's clients against the local cloud; the clock moves on
once it has ended. Slow: some minutes. Of Vertex AI it proves what docs/rehearsal.md says, and no more.
"""

import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from google.cloud.aiplatform_v1 import types
from PIL import Image
from sklearn.datasets import load_digits

from contracts import storage
from contracts.artifacts import RunRecord
from contracts.artifacts.promotion import Decision
from contracts.config import SPLITS, RunConfig, SplitFractions
from contracts.promotions import find_production, read_decisions
from inspection.run.history import read_history
from pipelines.rehearse.commands import environment_of, led_to, play
from pipelines.rehearse.config import prepare
from pipelines.rehearse.rehearse import Wanted, let_schedule_fire, make_cloud, open_folder
from rehearsal.cloud import LocalCloud
from sharding.plan import choose_split
from tests.pipelines.images import image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "configs" / "digits-vertex.yaml"
FIRST, EACH_WEEK, NEW_CLASS = 700, 60, 9
SETTINGS: dict[str, Any] = {
    "profile": {"method": "off"},
    "train": {"global_batch_size": 32, "epochs": 2, "learning_rate": 0.01, "weight_decay": 0.01},
    "resources": {"machine": {"type": "n1-standard-4"}, "nodes": 1, "ranks": 1, "strategy": "SPOT"},
    # What ships runs on ONNX Runtime here: nothing is proven on a GPU.
    "export": {"runtime": "onnxruntime_tensorrt", "allow_unproven": True},
    "validate": {"new_classes": "fail", "drift": "warn"},
    "promote": {"judge": True, "require_proven": False, "largest_loss": 0.05, "class_floor": 0.5},
    "vertex": {"mail": ["team@acme.example"]},
    "schedule": {"cron": "0 6 * * 1", "when": {"new_samples": 20}},
}


@dataclass
class Source:
    """The line's source, a folder or a bucket's; digits come in scikit-learn's order."""

    uri: str
    used: int = 0

    def add(self, count: int, *, new_class: bool = False) -> list[str]:
        """Write the next digits, of the class that comes later none unless it is asked for; return their URIs."""
        digits, added = load_digits(), list[str]()
        while len(added) < count:
            number, self.used = self.used, self.used + 1
            label = int(digits.target[number])
            if (label == NEW_CLASS) == new_class:
                added.append(self.write(f"{label}/{number:04d}.png", digits.images[number]))
        return added

    def write(self, name: str, scan: npt.NDArray[np.float64]) -> str:
        pixels = np.rint(scan * (255 / 16)).astype(np.uint8)
        return self.put(storage.join(self.uri, *name.split("/")), Image.fromarray(pixels).resize((32, 32)))

    def put(self, uri: str, image: Image.Image) -> str:
        content = io.BytesIO()
        image.save(content, format="PNG")
        storage.replace(uri, content.getvalue())
        return uri

    def mislabel(self, true: int, said: int, count: int, fractions: SplitFractions) -> list[str]:
        """Add digits under another's label, all in the training split: the test split stays as it is."""
        digits = load_digits()
        images, added = digits.images[digits.target == true], list[str]()
        for number in itertools.count():
            name = f"{said}/wrong-{number:04d}.png"
            if SPLITS[choose_split(name.encode(), fractions)] == "train":
                # No copies: some grey for each.
                scan = np.clip(images[len(added) % len(images)] + number % 3, 0, 16)
                added.append(self.write(name, scan))
            if len(added) == count:
                break
        return added

    def brighten(self) -> None:
        for found in list(storage.list_objects(self.uri)):
            uri = storage.join(self.uri, *found.name.split("/"))
            pixels = np.asarray(Image.open(io.BytesIO(storage.read_bytes(uri))), np.float64)
            self.put(uri, Image.fromarray((120 + pixels * 0.5).astype(np.uint8)))


@pytest.fixture
def rehearsed(tmp_path: Path) -> Iterator[tuple[LocalCloud, Path, RunConfig, Source]]:
    raw, folder = tmp_path / "raw", tmp_path / "kept"
    first = Source(storage.normalise(raw))
    first.add(FIRST)
    values = {**yaml.safe_load(DIGITS.read_text()), **SETTINGS}
    values["cloud"]["images"] = {role: image(role) for role in ("pipeline", "trainer", "export")}
    prepared = prepare(RunConfig.model_validate(values), raw)
    wanted = Wanted(time_scale=0.02, processes_per_node=None)
    path, _ = open_folder(folder, prepared, None)
    cloud = make_cloud(folder, prepared, wanted)
    source = Source(prepared.config.sharding.source, used=first.used)
    with cloud, led_to(environment_of(cloud, folder)):
        assert play("schedule", "create", path)[0] == 0
        yield cloud, path, prepared.config, source


def test_a_quarter_of_a_year(rehearsed: tuple[LocalCloud, Path, RunConfig, Source]) -> None:
    cloud, _, config, source = rehearsed
    line = storage.join(config.run.root, config.run.name)
    told: list[str] = []

    def week(number: int) -> tuple[types.PipelineJob, Decision | None]:
        before = len(read_decisions(line))
        assert let_schedule_fire(cloud)
        job = max(cloud.store.list("projects/", types.PipelineJob), key=lambda one: one.create_time)
        decisions = read_decisions(line)
        decision = decisions[-1] if len(decisions) > before else None
        production = find_production(line)
        told.append(
            f"week {number}: {job.state.name}, {decision.action if decision else 'no decision'}"
            f"{f' ({decision.reasons[0]})' if decision else ''}; production {production.run if production else 'none'}"
        )
        print(told[-1], flush=True)
        return job, decision

    def jobs() -> int:
        return len(list(cloud.store.list("projects/", types.CustomJob)))

    _, first = week(1)
    assert first is not None and first.action == "promoted" and first.before == "" and first.judgement is not None

    source.add(EACH_WEEK)
    _, second = week(2)
    assert second is not None and second.action in ("promoted", "kept")
    assert second.judgement is not None and second.judgement.champion == first.run and second.judgement.samples > 100

    # Nothing new: no job, and nothing moves; a few more are not enough.
    before, before_jobs = find_production(line), jobs()
    for few in (0, 19):
        source.add(few)
        job, none = week(3)
        assert job.state == types.PipelineState.PIPELINE_STATE_SUCCEEDED
        assert none is None and jobs() == before_jobs and find_production(line) == before
        record = read_record(line, job)
        assert record.state == "nothing to do" and record.results["firing"]["new"] == few
        assert {stage.state for stage in record.stages} == {"not started"}

    source.add(EACH_WEEK)
    week(4)
    nines = source.add(30, new_class=True)
    before_jobs = jobs()
    job, none = week(5)
    assert job.state == types.PipelineState.PIPELINE_STATE_FAILED and none is None and jobs() == before_jobs
    report = read_report(line, job)
    assert report["verdict"] == "fail" and any("9" in text for text in report["problems"])
    mail = cloud.pipelines.mails[-1]
    assert (mail["recipients"], mail["status"]["state"]) == (["team@acme.example"], "FAILED")
    assert "class" in read_record(line, job).error
    for uri in nines:
        storage.delete(uri)

    wrong = source.mislabel(3, 5, 150, config.sharding.splits)
    _, worse = week(6)
    assert worse is not None and worse.action == "kept" and worse.judgement is not None
    assert worse.production == worse.before != ""
    for uri in wrong:
        storage.delete(uri)

    source.add(EACH_WEEK)
    week(7)
    source.brighten()
    job, bright = week(8)
    assert bright is not None and bright.action == "promoted" and bright.run != bright.before
    assert any("brightness" in text for text in read_report(line, job)["warnings"])

    source.add(EACH_WEEK)
    week(9)
    now, promoted = find_production(line), read_decisions(line)
    assert now is not None and promoted
    code, said = play("rollback", storage.join(line, "runs", now.run), "--reason", "night shots")
    assert code == 0 and "rolled back" in said
    back = read_decisions(line)[-1]
    assert (back.action, back.before, back.judgement, back.reasons) == ("rolled back", now.run, None, ["night shots"])
    source.add(EACH_WEEK)
    _, tenth = week(10)
    assert tenth is not None and tenth.before == back.production

    champion = find_production(line)
    assert champion is not None
    graph = next(one for one in storage.list_objects(champion.export) if one.name.endswith(".onnx"))
    storage.replace(storage.join(champion.export, *graph.name.split("/")), b"damaged")
    source.add(EACH_WEEK)
    _, eleventh = week(11)
    assert eleventh is not None and eleventh.action == "not judged" and eleventh.production == champion.run
    assert "cannot be judged" in eleventh.reasons[0]
    assert graph.name.rpartition("/")[2] in eleventh.reasons[0]

    source.add(EACH_WEEK)
    _, last = week(12)
    assert last is not None and last.action == "not judged"
    assert len(told) == len(cloud.pipelines.mails) == 13
    rows = read_history(line).rows
    assert [row.texts()["cost"] != "" for row in rows if row.line is not None] == [
        row.line.state == "succeeded" for row in rows if row.line is not None
    ]


def read_record(line: str, job: types.PipelineJob) -> RunRecord:
    uri = storage.join(line, "runs", job.name.rpartition("/")[2], "run.json")
    return RunRecord.parse(storage.read_bytes(uri), where=uri)


def read_report(line: str, job: types.PipelineJob) -> dict[str, Any]:
    run_id = job.name.rpartition("/")[2]
    uri = storage.join(line, "runs", run_id, "results", "data-report.json")
    report: dict[str, Any] = json.loads(storage.read_bytes(uri))
    return report
