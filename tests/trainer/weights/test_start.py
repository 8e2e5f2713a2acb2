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
from tests.trainer.tasks.for_tests import image_network
from trainer.tasks.classes.head import Head, find_head
from trainer.tasks.images.network import build_network
from trainer.weights.source import find_source, with_saved_arguments
from trainer.weights.start import StartWeights, start_from
from trainer.weights.tensors import read_tensors

SIZE = 32
CLASSES = ("bird", "cat", "dog")
TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "vit": {**TRANSFORMER, "patch_size": 8},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "patch_size": 4, "window_size": 4},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
}


def section(architecture: str, **changes: Any) -> ModelSection:
    return ModelSection(architecture=architecture, arguments=ARCHITECTURES.get(architecture, {}), **changes)


def network(architecture: str, num_classes: int = 3, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return image_network(section(architecture), num_classes, SIZE).eval()


def head_of(architecture: str, classes: tuple[str, ...] = CLASSES) -> Head:
    def build(num_classes: int) -> nn.Module:
        return build_network(section(architecture), num_classes=num_classes, image_size=SIZE)

    return Head(find_head(build, len(classes), example=example, on_meta=True), classes)


def example() -> tuple[torch.Tensor]:
    return (torch.zeros(2, 3, SIZE, SIZE),)


def start(net: nn.Module, path: Path, architecture: str, classes: tuple[str, ...] = CLASSES, least: float = 0.5) -> Any:
    uri = storage.normalise(path)
    wanted = StartWeights(uri, find_source(uri).sha256(), least)
    return start_from(net, wanted, head_of(architecture, classes))


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
def test_a_folder_of_transformers_loads_whole(architecture: str, tmp_path: Path) -> None:
    folder, theirs = saved_folder(tmp_path / "saved", architecture)
    ours = network(architecture)
    report = start(ours, folder, architecture)
    assert (report.kind, report.matched_fraction) == ("transformers", 1.0)
    assert not report.missing and not report.unexpected and not report.other_shape
    assert report.classes_taken == list(CLASSES) and report.head
    images = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(pixel_values=images).logits, rtol=0, atol=1e-6)


def with_old_fields(folder: Path) -> Path:
    """Write fields into a config.json that other versions of transformers have written, and no network has."""
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"gradient_checkpointing": False, "torch_dtype": "float32"})
    )
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_arguments_are_those_of_the_folder_where_none_are_given(architecture: str, tmp_path: Path) -> None:
    folder, theirs = saved_folder(tmp_path / "saved", architecture)
    with_old_fields(folder)
    config = RunConfig.model_validate({"model": {"architecture": architecture, "weights": str(folder)}})
    filled = with_saved_arguments(config, find_source(storage.normalise(folder)).config)
    # As a checkpoint records them, and an export reads them.
    again = RunConfig.model_validate_json(filled.model_dump_json())
    ours = image_network(again.model, image_size=SIZE)
    assert {name: tensor.shape for name, tensor in ours.state_dict().items() if "classifier" not in name} == {
        name: tensor.shape for name, tensor in theirs.state_dict().items() if "classifier" not in name
    }
    assert start(ours, folder, architecture).matched_fraction == 1.0
    for other in (
        {"model": {"architecture": "convnext", "weights": str(folder)}},
        {"model": {"architecture": architecture, "weights": str(folder), "arguments": {"hidden_act": "relu"}}},
        {"model": {"architecture": "my:network", "weights": str(folder)}},
        {"model": {"architecture": architecture, "weights": "previous"}},
    ):
        given = RunConfig.model_validate(other)
        assert with_saved_arguments(given, find_source(storage.normalise(folder)).config) == given


def test_the_file_of_such_a_folder_loads_by_the_names_that_it_has(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "swin")
    report = start(network("swin"), folder / "model.safetensors", "swin")
    assert (report.kind, report.matched_fraction, report.missing) == ("file", 1.0, [])
    # Nothing says what its classes are.
    assert report.classes_taken == []


def test_rows_of_the_head_come_by_class_name(tmp_path: Path) -> None:
    folder, theirs = saved_folder(tmp_path / "saved", "vit", ("dog", "fish", "bird", "ox"))
    ours, drawn = network("vit"), network("vit")
    report = start(ours, folder, "vit")
    assert report.classes_taken == ["bird", "dog"]
    rows = ours.classifier.weight
    assert torch.equal(rows[0], theirs.classifier.weight[2]) and torch.equal(rows[2], theirs.classifier.weight[0])
    assert torch.equal(rows[1], drawn.classifier.weight[1]) and not torch.equal(rows[0], drawn.classifier.weight[0])
    assert torch.equal(ours.classifier.bias[0], theirs.classifier.bias[2])


def test_a_head_of_other_classes_is_drawn_anew_though_its_shape_is_equal(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "vit", ("a", "b", "c"))
    ours, drawn = network("vit"), network("vit")
    report = start(ours, folder, "vit")
    assert report.classes_taken == [] and report.matched_fraction == 1.0
    assert torch.equal(ours.classifier.weight, drawn.classifier.weight)


def test_random_generators_stay_where_they_were(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "vit", ("a",))
    ours = network("vit")
    before = torch.get_rng_state()
    start(ours, folder, "vit")
    assert torch.equal(torch.get_rng_state(), before)


Save = Callable[[dict[str, torch.Tensor], Path], None]
WRAPPERS: dict[str, Save] = {
    "safetensors": lambda state, path: save_file(state, path),
    "compiled ddp": lambda state, path: torch.save({f"_orig_mod.module.{n}": t for n, t in state.items()}, path),
    "both": lambda state, path: torch.save({"model": {"state_dict": state}}, path),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_file_loads_by_name(wrapper: str, tmp_path: Path) -> None:
    theirs = network("resnet", seed=1)
    suffix = "safetensors" if wrapper == "safetensors" else "pth"
    path = tmp_path / f"weights.{suffix}"
    WRAPPERS[wrapper]({name: tensor.clone() for name, tensor in theirs.state_dict().items()}, path)
    ours = network("resnet")
    report = start(ours, path, "resnet")
    assert report.matched_fraction == 1.0 and report.unexpected == []
    head = head_of("resnet")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor) == (name not in head.tensors), name


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
        start(network("resnet"), path, "resnet")
    assert not trap.exists()


def test_an_old_pickle_is_refused_too(tmp_path: Path) -> None:
    path, trap = tmp_path / "weights.pt", tmp_path / "trap"
    path.write_bytes(pickle.dumps({"model": _Runs(trap)}, protocol=2))
    with pytest.raises(ModelError, match=r"model\.weights"):
        start(network("resnet"), path, "resnet")
    assert not trap.exists()


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("kept", [0, 5, 0.99])
def test_a_file_that_is_cut_short_is_refused(suffix: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(network("resnet").state_dict(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept if kept > 1 else kept * len(content))])
    with pytest.raises(ModelError, match=f"weights.{suffix}.*cannot be read") as failure:
        start(network("resnet"), path, "resnet")
    assert failure.value.exit_code == 2


@pytest.mark.parametrize("kept", [1, 37, 0.7])
def test_an_old_torch_file_that_is_cut_short_is_refused(kept: float, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(40), "b": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept if kept >= 1 else kept * len(content))])
    with pytest.raises(ModelError, match=r"model\.weights"):
        read_tensors(find_source(storage.normalise(path)), nn.Linear(1, 1))


def test_a_file_with_any_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "my wéights%20 #1.safetensors"
    save_file(network("resnet", seed=1).state_dict(), path)
    assert start(network("resnet"), path, "resnet").matched_fraction == 1.0


def test_names_that_differ_by_what_wrappers_add_are_told_apart(tmp_path: Path) -> None:
    def build(value: float) -> nn.Module:
        net = nn.Module()
        net.add_module("body", nn.Linear(2, 2))
        net.add_module("module", nn.Module())
        net.get_submodule("module").add_module("body", nn.Linear(2, 2))
        for number, tensor in enumerate(net.parameters()):
            nn.init.constant_(tensor, value * (number + 1))
        return net

    path = tmp_path / "weights.safetensors"
    theirs, ours = build(1.0), build(0.0)
    save_file(theirs.state_dict(), path)
    uri = storage.normalise(path)
    report = start_from(ours, StartWeights(uri, find_source(uri).sha256(), 1.0), None)
    assert report.taken == 4
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    # With a wrapper's prefix before both nobody can tell which is which.
    save_file({f"_orig_mod.{name}": tensor for name, tensor in theirs.state_dict().items()}, path)
    with pytest.raises(ModelError, match="missing"):
        start_from(build(0.0), StartWeights(uri, find_source(uri).sha256(), 0.5), None)


def test_a_folder_with_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "vit")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="refused by transformers"):
        start(network("vit"), folder, "vit")


def test_weights_of_another_architecture_are_refused_with_what_to_set(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "vit")
    with pytest.raises(ModelError) as failure:
        start(network("resnet"), folder, "resnet")
    assert "has 0.00 of the network's elements" in failure.value.given
    assert failure.value.todo.startswith("set model.architecture=vit")


def test_weights_of_another_size_are_refused_with_what_to_set(tmp_path: Path) -> None:
    folder, _ = saved_folder(tmp_path / "saved", "vit")
    torch.manual_seed(0)
    wide = ModelSection(architecture="vit", arguments={**ARCHITECTURES["vit"], "hidden_size": 64})
    ours = image_network(wide, image_size=SIZE)
    with pytest.raises(ModelError) as failure:
        start(ours, folder, "vit")
    assert failure.value.todo.startswith("set model.arguments={'hidden_size': 32")


def test_fewer_elements_than_wanted_are_refused_and_allowed_where_that_is_set(tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in network("resnet", seed=1).state_dict().items()}
    some = {name: tensor for name, tensor in state.items() if "embedder" in name}
    path = tmp_path / "weights.safetensors"
    save_file(some, path)
    with pytest.raises(ModelError, match="missing"):
        start(network("resnet"), path, "resnet")
    report = start(network("resnet"), path, "resnet", least=0.01)
    assert report.taken == len(some) and 0.01 < report.matched_fraction < 0.5
    save_file({"other": torch.zeros(3)}, path)
    with pytest.raises(ModelError, match="unexpected"):
        start(network("resnet"), path, "resnet", least=0.01)


REFUSED: dict[str, tuple[dict[str, bytes], str, str]] = {
    "nothing": ({}, "", "is not there"),
    "missing file": ({}, "weights.pt", "is not there"),
    "other kind of file": ({"weights.bin": b"x"}, "weights.bin", "is a file of another kind"),
    "only a pickle": ({"config.json": b"{}", "pytorch_model.bin": b"x"}, ".", "pytorch_model.bin, and no .safetensors"),
    "config that is no JSON": ({"config.json": b"{", "model.safetensors": b"x"}, ".", "no JSON"),
    "part": ({"model-00001-of-00002.safetensors": b"x"}, "model-00001-of-00002.safetensors", "one part of several"),
    "shard missing": (
        {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "b.safetensors"}}'},
        ".",
        "lacks b.safetensors",
    ),
    "index that is no JSON": ({"config.json": b"{}", "model.safetensors.index.json": b"{"}, ".", "is no JSON"),
    "index of nothing": ({"config.json": b"{}", "model.safetensors.index.json": b"[]"}, ".", "without a weight_map"),
    "adapter": (
        {"config.json": b"{}", "adapter_config.json": b"{}", "model.safetensors": b""},
        ".",
        "holds an adapter",
    ),
    "folder named as a file": ({"a.pt/x": b""}, "a.pt", "a folder with the name of a file"),
    "other manifest": ({"manifest.json": b'{"kind": "shards"}'}, ".", "manifest of kind shards"),
    "unfinished training": ({"checkpoints/x": b""}, ".", "not finished"),
    "unfinished run": ({"run-start.json": b"{}"}, ".", "has not ended well"),
    "some folder": ({"a.txt": b""}, ".", "holds none of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_source_of_weights_is_refused_by_what_it_is(case: str, tmp_path: Path) -> None:
    files, name, said = REFUSED[case]
    for path, content in files.items():
        (tmp_path / "x" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / path).write_bytes(content)
    with pytest.raises(UserError, match=said):
        find_source(storage.normalise(tmp_path / "x" / name))


def test_content_that_changed_since_the_training_was_named_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(network("resnet", seed=1).state_dict(), path)
    uri = storage.normalise(path)
    wanted = StartWeights(uri, find_source(uri).sha256(), 0.5)
    save_file(network("resnet", seed=2).state_dict(), path)
    with pytest.raises(UserError, match="has changed since"):
        start_from(network("resnet"), wanted, head_of("resnet"))


def test_the_hash_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    one, _ = saved_folder(tmp_path / "one", "vit")
    other, _ = saved_folder(tmp_path / "other", "vit")
    assert find_source(storage.normalise(one)).sha256() == find_source(storage.normalise(other)).sha256()
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "id2label": {"0": "x", "1": "y", "2": "z"}}))
    assert find_source(storage.normalise(one)).sha256() != find_source(storage.normalise(other)).sha256()


def test_tied_tensors_are_not_missing(tmp_path: Path) -> None:
    first = nn.Linear(4, 4)
    tied = nn.Sequential(first, nn.Linear(4, 4))
    tied[1].weight = first.weight
    path = tmp_path / "weights.safetensors"
    save_file({"0.weight": torch.ones(4, 4), "0.bias": torch.ones(4), "1.bias": torch.ones(4)}, path)
    uri = storage.normalise(path)
    report = start_from(tied, StartWeights(uri, find_source(uri).sha256(), 1.0), None)
    assert report.missing == [] and bool((tied[1].weight == 1).all())


def test_a_part_of_a_rank_is_refused_by_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "renamed.safetensors"
    save_file({"a": torch.zeros(2)}, path, metadata={"rows": json.dumps({"a": [[4], 0]})})
    with pytest.raises(ModelError, match="part of one rank"):
        read_tensors(find_source(storage.normalise(path)), nn.Linear(1, 1))


def test_heads_of_a_callable_and_of_one_that_cannot_be_on_meta() -> None:
    def build(num_classes: int) -> nn.Module:
        if torch.empty(1).is_meta:
            raise ModelError("no meta", allowed="", todo="")
        return nn.Sequential(nn.Linear(3, 8), nn.Linear(8, num_classes))

    for on_meta in (True, False):
        assert find_head(build, 8, example=example, on_meta=on_meta) == {"1.weight": 0, "1.bias": 0}
    assert find_head(lambda _: nn.Linear(3, 8), 8, example=example, on_meta=True) == {}
