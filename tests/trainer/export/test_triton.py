from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from contracts.artifacts import ExportManifest
from contracts.errors import ConfigError
from tests.trainer.export.graphs import image_signature
from tests.trainer.export.handover import RTX, TENSORRT, entry_of, make_export
from trainer.export.engine import build_engine
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.export.triton import find_contradictions, write_repository
from trainer.export.triton_config import RELEASES, image_for, parse_config

CONFIG = Path("triton/classifier/config.pbtxt")


@pytest.fixture(params=[RTX, TENSORRT], ids=["rtx", "tensorrt"])
def builder(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def document(exported: Any, tmp_path: Path, builder: str) -> ExportManifest:
    document = make_export(tmp_path, exported, builder=builder)
    write_repository(tmp_path, document)
    assert find_contradictions(tmp_path, document) == []
    return document


@pytest.mark.parametrize("builder", [RTX], indirect=True)
def test_the_configuration_says_what_the_manifest_says(document: ExportManifest, tmp_path: Path) -> None:
    config = parse_config((tmp_path / CONFIG).read_text())
    assert (config.name, config.backend, config.max_batch_size) == ("classifier", "onnxruntime", 10)
    (given,), (logits,) = config.input, config.output
    fp32 = 11  # TYPE_FP32 of Triton's model_config.proto: inputs and outputs of an fp16 graph stay fp32
    assert (given.name, given.data_type, list(given.dims)) == ("images", fp32, [3, 32, 32])
    assert (logits.name, logits.data_type, list(logits.dims)) == ("logits", fp32, [10])
    assert logits.label_filename == "labels.txt"
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.dynamic_batching.max_queue_delay_microseconds > 0
    assert [(warmup.batch_size, list(warmup.inputs["images"].dims)) for warmup in config.model_warmup] == [
        (1, [3, 32, 32]),
        (4, [3, 32, 32]),
    ]
    assert [group.count for group in config.instance_group] == [1]


def test_the_repository_is_whole_in_itself(exported: Any, tmp_path: Path, builder: str) -> None:
    document = make_export(tmp_path, exported, builder=builder)
    written = write_repository(tmp_path, document)
    model, source = ("model.plan", document.engines[0]) if builder == TENSORRT else ("model.onnx", document.graph())
    names = ["README.md", f"classifier/1/{model}", "classifier/config.pbtxt", "classifier/labels.txt"]
    assert written == [f"triton/{name}" for name in names]
    served = tmp_path / "triton/classifier/1" / model
    assert not served.is_symlink()  # nothing of it points outside
    assert served.read_bytes() == (tmp_path / source.name).read_bytes()
    assert served.stat().st_ino == (tmp_path / source.name).stat().st_ino  # no second copy of the bytes on this disk
    assert (tmp_path / "triton/classifier/labels.txt").read_text().split("\n") == [*map(str, range(10)), ""]


def test_it_is_written_again_over_what_an_attempt_left(document: ExportManifest, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_repository(tmp_path, document)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_where_files_cannot_be_linked_they_are_copied(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    document = make_export(tmp_path, exported)
    write_repository(tmp_path, document)
    assert find_contradictions(tmp_path, document) == []


def test_labels_are_a_line_each(exported: Any, tmp_path: Path) -> None:
    document = make_export(tmp_path, exported)
    names = ["two\nlines", "Zürich", 'a "quoted" one', "50%", *map(str, range(6))]
    (tmp_path / "labels.json").write_text(json.dumps(names))
    write_repository(tmp_path, document)
    assert find_contradictions(tmp_path, document) == []
    lines = (tmp_path / "triton/classifier/labels.txt").read_text(encoding="utf-8").split("\n")
    assert lines == ["two lines", *names[1:], ""]


def change_config(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / CONFIG).read_text()
        assert old in text
        (folder / CONFIG).write_text(text.replace(old, new, 1))

    return change


def append(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / CONFIG).open("a") as stream:
            stream.write(text)

    return change


def change_labels(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "triton/classifier/labels.txt"
        path.write_text(path.read_text().replace(old, new, 1))

    return change


def change_byte(folder: Path) -> None:
    (path,) = (folder / "triton/classifier/1").iterdir()
    content = path.read_bytes()
    path.unlink()  # the file beside it is the same one
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def remove_model(folder: Path) -> None:
    (path,) = (folder / "triton/classifier/1").iterdir()
    path.unlink()


def rename_folder(folder: Path) -> None:
    (folder / "triton/classifier").rename(folder / "triton/other")


def add_model(folder: Path) -> None:
    (folder / "triton/second").mkdir()


def change_image(folder: Path) -> None:
    readme = folder / "triton/README.md"
    readme.write_text(readme.read_text().replace("tritonserver:26.08", "tritonserver:26.09"))


DAMAGE = {
    "a negative batch": (change_config("max_batch_size: 10", "max_batch_size: -5"), "max_batch_size -5; by"),
    "a batch beyond the profile": (change_config("max_batch_size: 10", "max_batch_size: 11"), "max_batch_size 11; by"),
    "no batch": (change_config("max_batch_size: 10", ""), "max_batch_size nothing; by manifest and ONNX graph it is"),
    "an unknown backend": (change_config('backend: "', 'backend: "no'), "has backend 'no"),
    "a platform beside the backend": (append('platform: "onnxruntime_onnx"'), "platform 'onnxruntime_onnx'; by"),
    "another file": (append('default_model_filename: "other.onnx"'), "has default_model_filename 'other.onnx'"),
    "another name": (change_config('name: "classifier"', 'name: "other"'), "has name 'other'; by"),
    "another folder": (rename_folder, "has name 'classifier'; by manifest and ONNX graph it is 'other'"),
    "a second model": (add_model, "holds one model; found: classifier, second"),
    "another input": (change_config('name: "images"', 'name: "pixels"'), "has input[0].name 'pixels'; by"),
    "another output": (change_config('name: "logits"', 'name: "scores"'), "has output[0].name 'scores'; by"),
    "a second output": (
        append('output { name: "more" data_type: TYPE_FP32 dims: 1 }'),
        "has output[1].name 'more'; by manifest and ONNX graph it is nothing",
    ),
    "another type": (change_config("TYPE_FP32", "TYPE_FP16"), "has input[0].data_type 'TYPE_FP16'; by"),
    "a type that there is not": (change_config("TYPE_FP32", "99"), "has input[0].data_type 99; by"),
    "an instance that there is not": (append("instance_group { count: 0 kind: 77 }"), "has instance_group[1].kind 77"),
    "another shape": (change_config("dims: 3", "dims: 4"), "has input[0].dims[0] '4'; by"),
    "another width": (change_config("dims: 10", "dims: 9"), "has output[0].dims[0] '9'; by"),
    "an input that is reshaped": (
        change_config('name: "images"', 'name: "images" reshape { shape: [32, 32, 3] }'),
        "has input[0].reshape.shape[2] '3'; by manifest and ONNX graph it is nothing",
    ),
    "an input of another layout": (
        change_config('name: "images"', 'name: "images" format: FORMAT_NHWC'),
        "has input[0].format 'FORMAT_NHWC'; by",
    ),
    "an optional input": (
        change_config('name: "images"', 'name: "images" optional: true'),
        "has input[0].optional True; by",
    ),
    "an output that is reshaped": (
        change_config('name: "logits"', 'name: "logits" reshape { shape: [5, 2] }'),
        "has output[0].reshape.shape[0] '5'; by",
    ),
    "an output without its labels": (change_config('label_filename: "labels.txt"', ""), "label_filename nothing; by"),
    "an empty message": (append("model_transaction_policy {}"), "has model_transaction_policy {}; by"),
    "no dynamic batching": (
        change_config("preferred_batch_size: 4\n  max_queue_delay_microseconds: 100", ""),
        "has dynamic_batching {}; by",
    ),
    "another tuned batch": (
        change_config("preferred_batch_size: 4", "preferred_batch_size: 5"),
        "has dynamic_batching.preferred_batch_size[0] 5; by",
    ),
    "another queue": (
        change_config("dynamic_batching {", "dynamic_batching { preserve_ordering: true"),
        "has dynamic_batching.preserve_ordering True; by",
    ),
    "a preferred batch that does not fit": (
        change_config("preferred_batch_size: 4", "preferred_batch_size: [4, 11]"),
        "has dynamic_batching.preferred_batch_size[1] 11; by",
    ),
    "a warmup that does not fit": (change_config("  batch_size: 4", "  batch_size: 400"), "[1].batch_size 400; by"),
    "a warmup of another shape": (
        change_config("dims: 3\n      dims: 32", "dims: 32"),
        "has model_warmup[0].inputs.images.dims[2] nothing; by",
    ),
    "other labels' file": (change_config("labels.txt", "names.txt"), "has output[0].label_filename 'names.txt'; by"),
    "shuffled labels": (change_labels("0\n1\n", "1\n0\n"), "other labels than labels.json, from class 0 on"),
    "a label too few": (change_labels("9\n", ""), "other labels than labels.json, 9 against 10"),
    "a changed byte of the model": (change_byte, "of the manifest"),
    "no model": (remove_model, "is missing"),
    "another image": (change_image, "README.md names nvcr.io/nvidia/tritonserver:26.09-py3; the model needs"),
    "no text format": (append("max_batch_size {"), "cannot be read"),
    "a field that there is not": (append("max_batch: 3"), "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_contradicts_is_said(document: ExportManifest, tmp_path: Path, name: str) -> None:
    damage, words = DAMAGE[name]
    damage(tmp_path)
    found = find_contradictions(tmp_path, document)
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize("builder", [TENSORRT], indirect=True)
def test_an_engine_s_instance_on_the_cpu_is_said(document: ExportManifest, tmp_path: Path) -> None:
    change_config("KIND_GPU", "KIND_CPU")(tmp_path)
    assert find_contradictions(tmp_path, document) == [
        "config.pbtxt has instance_group[0].kind 'KIND_CPU'; by manifest and ONNX graph it is 'KIND_GPU'"
    ]


def with_engine(document: ExportManifest, **changes: Any) -> ExportManifest:
    return document.model_copy(update={"engines": [document.engines[0].model_copy(update=changes)]})


def test_what_a_real_build_says_of_its_tensors_agrees(exported: Any, tmp_path: Path) -> None:
    document = make_export(tmp_path, exported)
    write_repository(tmp_path, document)
    tensors = build_engine(
        exported.fp16,
        tmp_path / "real.engine",
        builder=Builder(TENSORRT_RTX, "installed", ("sm89",)),
        signature=image_signature(32),
        opt_batch=4,
        max_batch=10,
    )
    assert len(tensors) == 2
    assert find_contradictions(tmp_path, with_engine(document, tensors=tensors)) == []


def test_a_manifest_that_says_otherwise_is_found(document: ExportManifest, tmp_path: Path) -> None:
    cases = {
        "has max_batch_size 10; by manifest and ONNX graph it is 8": with_engine(document, max_batch=8),
        "preferred_batch_size[0] 4; by manifest and ONNX graph it is 3": with_engine(document, opt_batch=3),
        "batch sizes fall: the engine's profile is 1 to 10, tuned for 11": with_engine(document, opt_batch=11),
        "sm89.engine has input {'pixels': ('TYPE_FP32', [3, 32, 32])}, the ONNX": with_engine(
            document, tensors=[tensor.model_copy(update={"name": "pixels"}) for tensor in document.engines[0].tensors]
        ),
        "sm89.engine has output {'logits': ('TYPE_FP16', [10])}, the ONNX": with_engine(
            document, tensors=[tensor.model_copy(update={"dtype": "half"}) for tensor in document.engines[0].tensors]
        ),
        "was not built from model.fp16.onnx": with_engine(document, onnx_sha256="0" * 64),
        "the manifest has input {'images': ['batch', 3, 33, 32]}": document.model_copy(
            update={"inputs": {"images": ["batch", 3, 33, 32]}}
        ),
        "the manifest has output {'scores': ['batch', 10]}": document.model_copy(
            update={"outputs": {"scores": ["batch", 10]}}
        ),
    }
    for words, changed in cases.items():
        assert any(words in sentence for sentence in find_contradictions(tmp_path, changed)), words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda graph: setattr(graph.input[0], "name", "pixels"), "input[0].name 'images'; by"),
        (lambda graph: setattr(graph.input[0].type.tensor_type, "elem_type", 10), "it is 'TYPE_FP16'"),
        (lambda graph: setattr(graph.input[0].type.tensor_type, "elem_type", 14), "not told of"),
        (lambda graph: setattr(graph.output[0].type.tensor_type.shape.dim[1], "dim_value", 9), "it is '9'"),
        (lambda graph: setattr(graph.output[0].type.tensor_type.shape.dim[1], "dim_param", "n"), "not told of"),
        (lambda graph: setattr(graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2), "not dynamic"),
    ],
    ids=["name", "type", "unknown type", "shape", "dynamic shape", "batch"],
)
def test_a_graph_that_says_otherwise_is_found(
    document: ExportManifest, tmp_path: Path, change: Callable[[Any], None], words: str
) -> None:
    path = tmp_path / document.graph().name
    graph = onnx.load(path)
    change(graph.graph)
    path.unlink()
    onnx.save(graph, path)
    assert any(words in sentence for sentence in find_contradictions(tmp_path, document))


def test_a_graph_of_the_precision_that_does_not_ship_is_found(exported: Any, tmp_path: Path) -> None:
    document = make_export(tmp_path, exported)
    write_repository(tmp_path, document)
    (tmp_path / "triton/classifier/1/model.onnx").unlink()
    (tmp_path / "triton/classifier/1/model.onnx").write_bytes((tmp_path / "model.fp32.onnx").read_bytes())
    assert find_contradictions(tmp_path, document) == [
        "classifier/1/model.onnx is not the model.fp16.onnx of the manifest"
    ]


def test_an_export_without_a_repository_is_found(exported: Any, tmp_path: Path) -> None:
    assert find_contradictions(tmp_path, make_export(tmp_path, exported)) == ["triton/ holds one model; found: none"]


def test_the_image_is_that_of_the_tensorrt_version() -> None:
    assert image_for("tensorrt 11.2.1.2") == "nvcr.io/nvidia/tritonserver:26.08-py3"
    assert image_for("tensorrt 10.11.0.33") == "nvcr.io/nvidia/tritonserver:25.06-py3"
    for version in ("11.4.0.1", "11.2.0.5", "10.11.1.1", "1.7.1"):
        with pytest.raises(ConfigError, match=rf"(?s)have tensorrt {re.escape(version)}.*11\.2\.1 \(Triton 26\.08\)"):
            image_for(f"tensorrt {version}")
    # Graphs are bound to no version.
    assert image_for("tensorrt_rtx 9.9.9") == "nvcr.io/nvidia/tritonserver:26.08-py3"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in RELEASES)


def test_an_engine_that_no_release_loads_is_refused(exported: Any, tmp_path: Path) -> None:
    document = make_export(tmp_path, exported, builder="tensorrt 11.4.0.20")
    with pytest.raises(ConfigError, match=r"no Triton release is known to have tensorrt 11\.4\.0\.20"):
        write_repository(tmp_path, document)
    assert not (tmp_path / "triton").exists()


def test_an_engine_that_takes_no_single_image_is_refused(exported: Any, tmp_path: Path) -> None:
    document = with_engine(make_export(tmp_path, exported, builder=TENSORRT), min_batch=2)
    with pytest.raises(ConfigError, match="smallest batch is 2"):
        write_repository(tmp_path, document)
    # The graph takes any batch.
    write_repository(tmp_path, with_engine(make_export(tmp_path, exported), min_batch=2))


def test_the_readme_has_the_command_and_says_that_it_was_not_run(document: ExportManifest, tmp_path: Path) -> None:
    text = (tmp_path / "triton/README.md").read_text()
    assert "tritonserver --model-repository=/models" in text
    assert "Not run" in text
    assert image_for(document.engines[0].builder) in text
    assert ("does not load" in text) == (document.engines[0].builder == RTX)


def test_the_engine_s_entry_is_the_served_plan_s(exported: Any, tmp_path: Path) -> None:
    document = make_export(tmp_path, exported, builder=TENSORRT)
    write_repository(tmp_path, document)
    (tmp_path / document.engines[0].name).write_bytes(b"another plan")  # the link is the same file
    changed = with_engine(document, **entry_of(tmp_path, document.engines[0].name))
    assert find_contradictions(tmp_path, changed) == []
    assert find_contradictions(tmp_path, document) == [
        "classifier/1/model.plan is not the model.fp16.sm89.engine of the manifest"
    ]


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys, trainer.export.triton, trainer.export.card\n"
        "heavy = ('torch', 'onnx', 'onnxruntime', 'tritonclient', 'google.protobuf')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
