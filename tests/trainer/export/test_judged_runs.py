"""An export beside the one in production, through files as they ship."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, ShardManifest, ShippedFile
from contracts.config import RunConfig
from tests.trainer.export.conftest import CLASSES, IMAGE_SIZE, MODEL, Line
from trainer.judge.judging import Judgement, Limits, Trial, judge

LABELS = "labels.json"
# PROOF_SAMPLES, of 539.
SAMPLES = 512


def with_labels(export: Path, name: str, labels: list[str]) -> Path:
    """Return a copy of an export that calls its answers otherwise: what one gets of labels that were wrong."""
    found = shutil.copytree(export, export.parent / name)
    (found / LABELS).write_text(json.dumps(labels))
    uri = storage.normalise(found)
    document = ExportManifest.load(uri)
    files = [ShippedFile.of(uri, LABELS) if entry.name == LABELS else entry for entry in document.files]
    (found / MANIFEST_NAME).write_bytes(document.model_copy(update={"files": files}).sealed().to_json())
    return found


# Slow: a whole export.
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_worse_model_is_kept_out_and_a_damaged_one_stays(digits_line: Line, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.export.task", *digits_line.arguments()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    sound = digits_line.manifests[0].parent
    exchanged = with_labels(sound, "exchanged", [{"3": "8", "8": "3"}.get(name, name) for name in CLASSES])
    shards_uri = storage.normalise(tmp_path / "shards")
    config = RunConfig.model_validate({"data": {"image_size": IMAGE_SIZE}, "model": MODEL})

    def beside(challenger: Path, champion: Path) -> Judgement:
        trial = Trial(config, storage.normalise(challenger), shards_uri, ShardManifest.load(shards_uri))
        return judge(trial, storage.normalise(champion), Limits())

    assert beside(sound, sound).reasons == ["its export is the one that is in production"]
    worse = beside(exchanged, sound)
    assert (worse.verdict, worse.samples) == ("keep", SAMPLES)
    assert "more than largest_loss 0.02" in worse.reasons[0]
    assert {one.name for one in worse.classes[:2]} == {"3", "8"}
    assert worse.reasons[1].startswith(("class 3 loses", "class 8 loses"))
    better = beside(sound, exchanged)
    assert better.verdict == "promote"
    assert better.interval is not None
    assert better.interval[0] > 0.05
    # A class that production calls otherwise is one that it does not know.
    fewer = beside(sound, with_labels(sound, "fewer", [*CLASSES[:9], "nine"]))
    assert fewer.samples < SAMPLES
    assert "samples of classes that production lacks (9) are left out" in fewer.reasons[-1]

    (exchanged / LABELS).write_text(json.dumps(CLASSES))
    lost = beside(sound, exchanged)
    assert lost.verdict == "not judged"
    assert f"the model in production, {exchanged}, cannot be judged: the export in" in lost.reasons[0]
    assert f"is damaged: {LABELS} has" in lost.reasons[0]
    shutil.rmtree(exchanged)
    assert beside(sound, exchanged).verdict == "not judged"
