"""What an export leaves is loaded by plain transformers, and by a training."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.artifacts.export import ShippedFile
from contracts.config import ModelSection
from tests.export_fields import make_manifest
from tests.trainer.tasks.for_tests import image_task, planned_manifest
from tests.trainer.tasks.texts import BERT
from tests.trainer.weights.test_start import ARCHITECTURES, CLASSES, SIZE, network
from trainer.tasks import text
from trainer.weights.save import save_weights
from trainer.weights.source import WEIGHTS_NAME, find_source
from trainer.weights.start import StartWeights, start_from

# Nothing of this project: what a colleague has.
PLAIN = """
import sys, torch
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification
for folder in sys.argv[1:]:
    is_text = AutoConfig.from_pretrained(folder, local_files_only=True).model_type == "bert"
    kind = AutoModelForSequenceClassification if is_text else AutoModelForImageClassification
    model = kind.from_pretrained(folder, local_files_only=True).eval()
    torch.manual_seed(5)
    inputs = torch.arange(5, 21).repeat(2, 1) if is_text else torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        logits = model(inputs).logits
    torch.save({"logits": logits, "labels": [model.config.id2label[row] for row in range(3)]}, folder + "/found.pt")
"""


def test_plain_transformers_computes_the_same_logits(tmp_path: Path) -> None:
    section = ModelSection(architecture="bert", arguments=BERT)
    torch.manual_seed(3)
    bert = text.build_network(section, num_classes=3, vocabulary=30, padding=0, max_length=16).eval()
    networks = {**{name: network(name, seed=3) for name in ARCHITECTURES}, "bert": bert}
    for name, ours in networks.items():
        (tmp_path / name).mkdir()
        save_weights(ours, CLASSES, tmp_path / name)
    folders = [str(tmp_path / name) for name in networks]
    subprocess.run([sys.executable, "-c", PLAIN, *folders], check=True, cwd=tmp_path, timeout=120)
    tokens = torch.arange(5, 21).repeat(2, 1)
    torch.manual_seed(5)
    images = torch.randn(2, 3, SIZE, SIZE)
    for name, ours in networks.items():
        loaded = torch.load(tmp_path / name / "found.pt", weights_only=True)
        with torch.no_grad():
            logits = ours(tokens, torch.ones_like(tokens)) if name == "bert" else ours(images)
        torch.testing.assert_close(loaded["logits"], logits, rtol=0, atol=1e-6)
        assert tuple(loaded["labels"]) == CLASSES


@pytest.mark.parametrize("has_config", [True, False])
def test_an_exports_folder_is_taken_whole(has_config: bool, tmp_path: Path) -> None:
    """A network of transformers has its configuration beside it; one of your own has the classes in labels.json."""
    task, theirs = image_task(planned_manifest(3, classes=list(CLASSES))), network("vit", seed=3)
    (tmp_path / "labels.json").write_text(json.dumps(CLASSES))
    save_weights(theirs, CLASSES, tmp_path)
    uri = storage.normalise(tmp_path)
    files = [ShippedFile.of(uri, name) for name in ("labels.json", WEIGHTS_NAME)]
    (tmp_path / MANIFEST_NAME).write_bytes(make_manifest(signature=task.signature, files=files).to_json())
    if not has_config:
        (tmp_path / "config.json").unlink()
    ours = network("vit", seed=4)
    found = start_from(ours, StartWeights(uri, find_source(uri).sha256()), task)
    assert (found.kind, found.matched_fraction, found.head_taken) == ("export", 1.0, True)
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in theirs.state_dict().items())
