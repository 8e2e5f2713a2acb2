"""What an export leaves is loaded by plain transformers, and by a training."""

import json
from pathlib import Path
from typing import Any

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


def test_plain_transformers_computes_the_same_logits(tmp_path: Path) -> None:
    from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

    section = ModelSection(architecture="bert", arguments=BERT)
    bert = text.build_network(section, num_classes=3, vocabulary=30, padding=0, max_length=16).eval()
    tokens, images = torch.arange(5, 21).repeat(2, 1), torch.randn(2, 3, SIZE, SIZE)
    for name, ours in {**{name: network(name, seed=3) for name in ARCHITECTURES}, "bert": bert}.items():
        (tmp_path / name).mkdir()
        save_weights(ours, CLASSES, tmp_path / name)
        kind: Any = AutoModelForSequenceClassification if name == "bert" else AutoModelForImageClassification
        theirs = kind.from_pretrained(tmp_path / name, local_files_only=True).eval()
        with torch.no_grad():
            logits = ours(tokens, torch.ones_like(tokens)) if name == "bert" else ours(images)
            found = theirs(tokens if name == "bert" else images).logits
        torch.testing.assert_close(found, logits, rtol=0, atol=1e-6)
        assert tuple(theirs.config.id2label[row] for row in range(3)) == CLASSES


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
