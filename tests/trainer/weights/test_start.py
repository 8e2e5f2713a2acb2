"""Weights to start from: real folders of transformers, real files, read and matched with real networks."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from contracts import storage
from contracts.config import ModelSection, RunConfig
from contracts.errors import ModelError, UserError
from rehearsal.gcs import BucketServer
from tests.trainer.tasks.for_tests import image_network, image_task, planned_manifest
from trainer.tasks.image import build_network
from trainer.weights.source import find_source, with_saved_arguments
from trainer.weights.start import StartWeights, head_tensors, start_from, take_tensors
from trainer.weights.tensors import read_tensors

SIZE = 32
CLASSES = ("bird", "cat", "dog")
TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "vit": {**TRANSFORMER, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
}


def section(architecture: str, **changes: Any) -> ModelSection:
    return ModelSection(architecture=architecture, arguments=ARCHITECTURES.get(architecture, {}), **changes)


def network(architecture: str, num_classes: int = 3, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return image_network(section(architecture), num_classes, SIZE).eval()


def start(net: nn.Module, path: Path | str, classes: tuple[str, ...] = CLASSES) -> Any:
    """Start a network from weights; without classes it has no head."""
    uri = storage.normalise(path)
    task = image_task(planned_manifest(len(classes), classes=list(classes)))
    return start_from(net, StartWeights(uri, find_source(uri).sha256()), task)


def saved_folder(path: Path, architecture: str, classes: tuple[str, ...] = CLASSES) -> tuple[Path, Any]:
    """Return a folder as transformers saves it, and the network in it."""
    from transformers import AutoConfig, AutoModelForImageClassification

    labels = dict(enumerate(classes))
    arguments = {**ARCHITECTURES[architecture], "image_size": SIZE}
    config = AutoConfig.for_model(architecture, **arguments, id2label=labels, num_labels=len(classes))
    torch.manual_seed(1)
    theirs: Any = AutoModelForImageClassification.from_config(config)  # type: ignore[no-untyped-call]
    theirs.eval()
    theirs.save_pretrained(path)
    return path, theirs


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_of_transformers_loads_whole_and_its_file_without_the_head(architecture: str, tmp_path: Path) -> None:
    folder, theirs = saved_folder(tmp_path / "saved", architecture)
    ours = network(architecture)
    before = torch.get_rng_state()
    report = start(ours, folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert (report.kind, report.matched_fraction) == ("transformers", 1.0)
    assert not report.missing and not report.unexpected and not report.other_shape
    assert report.head and report.head_taken
    images = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(pixel_values=images).logits, rtol=0, atol=1e-6)
    report = start(network(architecture), folder / "model.safetensors")
    assert (report.matched_fraction, report.unexpected, report.head_taken) == (1.0, [], False)
    # As the checks before the first stage build it.
    with torch.device("meta"):
        on_meta = build_network(section(architecture), num_classes=3, image_size=SIZE)
    source = find_source(storage.normalise(folder))
    assert (
        take_tensors(on_meta, read_tensors(source, on_meta), image_task(3), source, sha256="").matched_fraction == 1.0
    )
    # A network without its head, as a folder and as a file.
    theirs.base_model.save_pretrained(tmp_path / "base")
    for path in (tmp_path / "base", tmp_path / "base" / "model.safetensors"):
        report = start(network(architecture), path)
        assert report.matched_fraction > 0.9 and not report.head_taken


def test_arguments_are_those_of_the_folder_where_none_are_given(tmp_path: Path) -> None:
    architecture = "resnet"
    folder, theirs = saved_folder(tmp_path / "saved", architecture)
    path = folder / "config.json"
    # Fields that other versions of transformers have written, and no network has.
    old = {"gradient_checkpointing": False, "torch_dtype": "float32"}
    path.write_text(json.dumps(json.loads(path.read_text()) | old))
    config = RunConfig.model_validate({"model": {"architecture": architecture, "weights": str(folder)}})
    filled = with_saved_arguments(config, find_source(storage.normalise(folder)).config)
    # As a checkpoint records them, and an export reads them.
    again = RunConfig.model_validate_json(filled.model_dump_json())
    ours = image_network(again.model, image_size=SIZE)
    assert {name: tensor.shape for name, tensor in ours.state_dict().items() if "classifier" not in name} == {
        name: tensor.shape for name, tensor in theirs.state_dict().items() if "classifier" not in name
    }
    assert start(ours, folder).matched_fraction == 1.0
    for other in ({"architecture": "regnet"}, {"architecture": architecture, "arguments": {"hidden_act": "relu"}}):
        given = RunConfig.model_validate({"model": {**other, "weights": str(folder)}})
        assert with_saved_arguments(given, find_source(storage.normalise(folder)).config) == given


@pytest.mark.parametrize("classes", [("dog", "cat", "bird"), ("bird", "cat", "dog", "ox")])
def test_a_head_of_other_classes_starts_anew(classes: tuple[str, ...], tmp_path: Path) -> None:
    """Though its shape is equal, or its classes are the same in another order."""
    folder, _ = saved_folder(tmp_path / "saved", "vit", classes)
    ours, drawn = network("vit"), network("vit")
    report = start(ours, folder)
    assert report.matched_fraction == 1.0 and not report.head_taken
    assert report.head == ["classifier.weight", "classifier.bias"] and "the classes are others" in report.in_words()
    assert torch.equal(ours.classifier.weight, drawn.classifier.weight)


Save = Callable[[dict[str, torch.Tensor], Path], None]
WRAPPERS: dict[str, Save] = {
    "safetensors": lambda state, path: save_file(state, path),
    "compiled ddp": lambda state, path: torch.save(
        {"model": {"state_dict": {f"_orig_mod.module.{n}": t for n, t in state.items()}}}, path
    ),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_file_loads_by_name(wrapper: str, tmp_path: Path) -> None:
    theirs = network("resnet", seed=1)
    path = tmp_path / f"my wéights%20 #1.{'safetensors' if wrapper == 'safetensors' else 'pth'}"
    WRAPPERS[wrapper]({name: tensor.clone() for name, tensor in theirs.state_dict().items()}, path)
    ours = network("resnet")
    report = start(ours, path)
    assert report.matched_fraction == 1.0 and report.unexpected == []
    head = head_tensors(ours.state_dict(), 3)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor) == (name not in head), name


class _Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    path, trap = tmp_path / "weights.pt", tmp_path / "trap"
    torch.save({"model": _Runs(trap)}, path)
    with pytest.raises(ModelError, match=r"holds more than tensors .*mkdir"):
        start(network("resnet"), path)
    path.write_bytes(pickle.dumps({"model": _Runs(trap)}, protocol=2))
    with pytest.raises(ModelError, match=r"model\.weights"):
        start(network("resnet"), path)
    assert not trap.exists()


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    state = {"a": torch.zeros(40), "b": torch.ones(3)}
    paths = [tmp_path / name for name in ("weights.safetensors", "weights.pt", "old.pt")]
    save_file(state, paths[0])
    torch.save(state, paths[1])
    torch.save(state, paths[2], _use_new_zipfile_serialization=False)
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 2 // 3])
        with pytest.raises(ModelError, match=r"model\.weights") as failure:
            start(nn.Linear(1, 1), path)
        assert failure.value.exit_code == 2


def test_weights_of_another_network_are_refused_with_what_to_set(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "vit")
    with pytest.raises(ModelError, match=r"has 0\.00 of the network's elements") as failure:
        start(network("resnet"), folder)
    assert failure.value.todo.startswith("set model.architecture=vit")
    wide = ModelSection(architecture="vit", arguments={**ARCHITECTURES["vit"], "hidden_size": 64})
    with pytest.raises(ModelError) as failure:
        start(image_network(wide, image_size=SIZE), folder)
    assert failure.value.todo.startswith("leave model.arguments out")


REFUSED: dict[str, tuple[dict[str, bytes], str, str]] = {
    "other kind of file": ({"weights.bin": b"x"}, "weights.bin", "is a file of another kind"),
    "only a pickle": ({"config.json": b"{}", "pytorch_model.bin": b"x"}, ".", "has no .safetensors file"),
    "part": ({"model-00001-of-00002.safetensors": b"x"}, "model-00001-of-00002.safetensors", "one part of several"),
    "unfinished training": ({"checkpoints/x": b""}, ".", "is not finished"),
    "some folder": ({"a.txt": b""}, ".", "holds none of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_source_of_weights_is_refused_by_what_it_is(case: str, tmp_path: Path) -> None:
    files, name, message = REFUSED[case]
    for path, content in files.items():
        (tmp_path / "x" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / path).write_bytes(content)
    with pytest.raises(UserError, match=message):
        find_source(storage.normalise(tmp_path / "x" / name))


def test_the_hash_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    one, _ = saved_folder(tmp_path / "one", "vit")
    other, _ = saved_folder(tmp_path / "other", "vit")
    uri = storage.normalise(one)
    sha256 = find_source(uri).sha256()
    assert sha256 == find_source(storage.normalise(other)).sha256()
    config = json.loads((one / "config.json").read_text())
    (one / "config.json").write_text(json.dumps({**config, "id2label": {"0": "x", "1": "y", "2": "z"}}))
    assert find_source(uri).sha256() != sha256
    with pytest.raises(UserError, match="has changed since"):
        start_from(network("vit"), StartWeights(uri, sha256), image_task(3))


def test_tied_tensors_are_not_missing_and_a_part_of_a_rank_is_refused(tmp_path: Path) -> None:
    first = nn.Linear(4, 4)
    tied = nn.Sequential(first, nn.Linear(4, 4))
    tied[1].weight = first.weight
    path = tmp_path / "weights.safetensors"
    save_file({"0.weight": torch.ones(4, 4), "0.bias": torch.ones(4), "1.bias": torch.ones(4)}, path)
    report = start(tied, path)
    assert report.missing == [] and bool((tied[1].weight == 1).all())
    save_file({"a": torch.zeros(2)}, path, metadata={"part": "0 of 2"})
    with pytest.raises(ModelError, match="part of one rank"):
        start(tied, path)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_weights_in_a_bucket(bucket_server: BucketServer, tmp_path: Path) -> None:
    """Hashed by the bucket's checksums, read by way of this machine's disk."""
    folder, _ = saved_folder(tmp_path / "saved", "vit")
    torch.save(network("vit", seed=1).state_dict(), folder / "other.pth")
    uri = "gs://bucket-1/vit"
    for path in folder.iterdir():
        storage.publish(f"{uri}/{path.name}", path.read_bytes())
    assert find_source(uri).sha256() == find_source(storage.normalise(folder)).sha256()
    for name in ("", "/model.safetensors", "/other.pth"):
        ours, local = network("vit"), network("vit")
        report = start(ours, f"{uri}{name}")
        start(local, folder / name.strip("/"))
        assert report.matched_fraction == 1.0 and report.source == uri + name
        assert all(torch.equal(tensor, local.state_dict()[key]) for key, tensor in ours.state_dict().items())
    with pytest.raises(ModelError, match="is not there"):
        find_source("gs://bucket-1/vit/gone.pt")
