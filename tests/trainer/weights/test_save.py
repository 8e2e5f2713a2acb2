"""What an export leaves is loaded by plain transformers, and by a training."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.weights.test_start import CLASSES, SIZE, network, saved_folder
from trainer.weights.save import load_saved, save_weights

# Nothing of this project: what a colleague has.
PLAIN = """
import sys, torch
from transformers import AutoModelForImageClassification
model = AutoModelForImageClassification.from_pretrained(sys.argv[1], local_files_only=True).eval()
torch.manual_seed(5)
with torch.no_grad():
    logits = model(pixel_values=torch.randn(2, 3, 32, 32)).logits
torch.save({"logits": logits, "labels": [model.config.id2label[row] for row in range(3)]}, sys.argv[2])
"""


@pytest.mark.parametrize("architecture", ["vit", "resnet"])
def test_the_folder_is_one_that_transformers_has_saved(architecture: str, tmp_path: Path) -> None:
    """Names of files that the library itself writes, and back into a network of ours."""
    ours = network(architecture, seed=3)
    save_weights(ours, CLASSES, tmp_path)
    theirs, _ = saved_folder(tmp_path / "theirs", architecture)
    assert set(load_file(tmp_path / "model.safetensors")) == set(load_file(theirs / "model.safetensors"))
    again = network(architecture, seed=4)
    load_saved(again, tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


def test_plain_transformers_computes_the_same_logits(tmp_path: Path) -> None:
    ours = network("vit", seed=3)
    save_weights(ours, CLASSES, tmp_path)
    subprocess.run(
        [sys.executable, "-c", PLAIN, str(tmp_path), str(tmp_path / "found.pt")], check=True, cwd=tmp_path, timeout=120
    )
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    torch.manual_seed(5)
    with torch.no_grad():
        logits = ours(torch.randn(2, 3, SIZE, SIZE))
    torch.testing.assert_close(found["logits"], logits, rtol=0, atol=1e-6)
    assert tuple(found["labels"]) == CLASSES


def test_a_network_of_ones_own_is_a_file_of_its_names(tmp_path: Path) -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
    save_weights(theirs, CLASSES, tmp_path)
    assert not (tmp_path / "config.json").exists()
    ours = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
    load_saved(ours, tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in theirs.state_dict().items())
