"""Whether weights fit is known before a tensor is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.errors import ModelError
from rehearsal.gcs import BucketServer
from tests.trainer.weights.test_start import (
    SIZE,
    head_of,
    network,
    saved_folder,
    section,
    start,
)
from trainer.tasks.images.network import build_network
from trainer.weights.fit import check_fit
from trainer.weights.source import find_source
from trainer.weights.start import StartWeights, start_from


def on_meta(architecture: str) -> Any:
    with torch.device("meta"):
        return build_network(section(architecture), num_classes=3, image_size=SIZE)


def check(path: Path, architecture: str, least: float = 0.5) -> str:
    return check_fit(storage.normalise(path), on_meta(architecture), head_of(architecture), least)


@pytest.mark.parametrize("architecture", ["vit", "resnet"])
def test_a_folder_of_transformers_fits(architecture: str, tmp_path: Path) -> None:
    folder, theirs = saved_folder(tmp_path, architecture)
    assert check(folder, architecture, least=1.0) == ""
    assert check(folder / "model.safetensors", architecture, least=1.0) == ""
    torch.save({"state_dict": theirs.state_dict()}, tmp_path / "all.pth")
    assert check(tmp_path / "all.pth", architecture, least=1.0) == ""


def test_a_network_without_its_head_fits_and_is_taken(tmp_path: Path) -> None:
    architecture = "swin"
    _, theirs = saved_folder(tmp_path / "whole", architecture)
    theirs.base_model.save_pretrained(tmp_path / "base")
    for at in (tmp_path / "base", tmp_path / "base" / "model.safetensors"):
        assert check(at, architecture, least=0.9) == ""
        report = start(network(architecture), at, architecture, least=0.9)
        assert report.matched_fraction > 0.9 and report.classes_taken == []


def test_no_tensor_is_read(tmp_path: Path) -> None:
    """Only the header can be right: the data is a hole of 4 TiB, which no disk here has."""
    header = {"huge": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
    content = json.dumps(header).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    with path.open("r+b") as file:
        file.truncate(8 + len(content) + (4 << 40))
    with pytest.raises(ModelError, match="unexpected"):
        check(path, "vit")


def test_another_network_and_a_file_that_is_cut_short_are_refused(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path, "vit")
    with pytest.raises(ModelError, match=r"has 0\.00 of the network") as failure:
        check(folder, "resnet")
    assert failure.value.todo.startswith("set model.architecture=vit")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match="its tensors have"):
        check(folder, "vit")
    path.write_bytes(b"{}")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        check(path, "vit")


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_weights_in_a_bucket(bucket_server: BucketServer, tmp_path: Path) -> None:
    """Looked at by ranges, hashed by the bucket's checksums, read by way of this machine's disk."""
    folder, _ = saved_folder(tmp_path / "saved", "vit")
    torch.save(network("vit", seed=1).state_dict(), folder / "other.pth")
    for path in folder.iterdir():
        storage.publish(f"gs://bucket-1/vit/{path.name}", path.read_bytes())
    head, uri = head_of("vit"), "gs://bucket-1/vit"
    assert check_fit(uri, on_meta("vit"), head, 1.0) == ""
    assert "a torch file in a bucket" in check_fit(f"{uri}/other.pth", on_meta("vit"), head, 1.0)
    assert find_source(uri).sha256() == find_source(storage.normalise(folder)).sha256()
    for name in ("", "/model.safetensors", "/other.pth"):
        wanted = StartWeights(uri + name, find_source(uri + name).sha256(), 1.0)
        ours, local = network("vit"), network("vit")
        report = start_from(ours, wanted, head)
        start(local, folder / name.strip("/"), "vit")
        assert report.matched_fraction == 1.0 and report.source == uri + name
        assert all(torch.equal(tensor, local.state_dict()[key]) for key, tensor in ours.state_dict().items())
    with pytest.raises(ModelError, match="is not there"):
        find_source("gs://bucket-1/vit/gone.pt")
