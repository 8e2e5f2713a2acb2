"""What `shardline verify` sees in a finished export that was changed afterwards, its checksums mended or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from components.entry import main as run_task
from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, FileEntry, Gate, ShardManifest, Verification
from contracts.errors import EXIT_UNPROVEN, ConfigError
from contracts.proof import find_unproven, read_verifications, require_proven
from rehearsal.gcs import BucketServer
from tests.trainer.export.conftest import Finished
from trainer.export import verify as verify_module
from trainer.export.engines import engine_open, engine_run, onnx_run
from trainer.export.engines.engine_open import NoGpu, open_engine
from trainer.export.gates.sessions import CPU, CUDA
from trainer.export.verify import _OnGpu, main
from trainer.export.workshop import hash_file
from trainer.predict import command
from trainer.predict.bundle import ExportedFiles

SERVED = "triton/classifier/1/model.onnx"


@pytest.fixture
def made(finished_line: Finished, tmp_path: Path) -> Path:
    """The folder of a copy of a finished export, in a line laid out as `shardline run` does it."""
    (found,) = finished_line.line.manifests
    shutil.copytree(found.parent, tmp_path / "export" / found.parent.name)
    manifest = ExportManifest.load(storage.normalise(found.parent))
    shutil.copytree(finished_line.line.folder / "shards", tmp_path / "shard" / manifest.shards_fingerprint)
    return tmp_path / "export" / found.parent.name


@pytest.fixture
def copy(made: Path, in_this_process: None) -> Path:
    """The same, whose verification starts no process."""
    return made


def verify(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main([str(folder)])
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out + captured.err


def failed_gates(folder: Path, capfd: pytest.CaptureFixture[str]) -> set[str]:
    """Verify a folder that must fail; return the gates that it names."""
    code, said = verify(folder, capfd)
    assert code == 1, said
    return set(said.strip().splitlines()[-1].rpartition("failed: ")[2].split(", "))


def mend(folder: Path) -> None:
    """Make every checksum right again, as someone would who knows how: only what files do can tell then."""
    uri = storage.normalise(folder)
    document = ExportManifest.load(uri)

    def again(entry: Any) -> Any:
        changes = FileEntry.of(uri, entry.name).model_dump(include={"bytes", "crc32c"})
        if "sha256" in type(entry).model_fields:
            changes["sha256"] = hash_file(folder / entry.name)
        return entry.model_copy(update=changes)

    graphs = [again(entry) for entry in document.graphs]
    engines = [again(entry).model_copy(update={"onnx_sha256": graphs[-1].sha256}) for entry in document.engines]
    files = [again(entry) for entry in document.files]
    assert document.served is not None
    hashes = {"sha256": hash_file(folder / SERVED), "config_sha256": hash_file(folder / document.served.config)}
    served = document.served.model_copy(update=hashes)
    document = document.model_copy(update={"graphs": graphs, "engines": engines, "files": files, "served": served})
    (folder / MANIFEST_NAME).write_bytes(document.sealed().to_json())


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    values = json.loads((folder / name).read_text())
    changed = change(values)
    (folder / name).write_text(json.dumps(values if changed is None else changed))


def test_what_was_made_is_unproven_and_nothing_is_wrong(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, said = verify(made, capfd)
    assert code == EXIT_UNPROVEN, said
    for gate in ("checksum", "program"):
        assert any(line.startswith("passed") and f" {gate} " in line for line in said.splitlines()), said
    assert "engine sm89" in said and "this machine has no GPU" in said
    lacks = "sm89, ONNX Runtime's CUDA provider, fp16 arithmetic"
    assert f"unproven as before: {lacks}; the same command on a GPU of sm89 runs the engine" in said
    assert f"serves {SERVED} (sha256 {hash_file(made / SERVED)[:12]}) ran by onnxruntime" in said


class FakeGpu:
    """What stands for a GPU of the engine's target: it records what it was given to run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.error: Exception | None = None
        monkeypatch.setattr(engine_open, "require_gpu", lambda entry: None)
        monkeypatch.setattr(engine_run, "judge_engine", self.judge)
        monkeypatch.setattr("trainer.export.verify._device_name", lambda: "a GPU")

    def judge(self, path: Path, entry: Any, *_: Any, **__: Any) -> tuple[Gate, None]:
        if self.error is not None:
            raise self.error
        self.ran.append(hash_file(path))
        return Gate(name=f"engine {entry.target}", precision="fp16", status="passed", ran="a test"), None


def test_an_engine_that_passes_on_its_gpu_completes_the_proof(
    copy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, uri = FakeGpu(monkeypatch), storage.normalise(copy)
    document = ExportManifest.load(uri)
    gpu.error = ConfigError("another version", allowed="the very version", todo="install it")
    code, said = verify(copy, capfd)
    assert code == EXIT_UNPROVEN and find_unproven(document, read_verifications(uri, document)) != [], said
    assert "not run       engine sm89    fp16  another version" in said
    gpu.error = None
    code, said = verify(copy, capfd)
    assert code == EXIT_UNPROVEN, said
    # What Triton serves is another file than the engine: it stays unproven.
    assert "served         fp16  this machine has no GPU" in said
    assert "unproven as before: ONNX Runtime's CUDA provider, fp16 arithmetic; on the GPU that serves" in said
    assert gpu.ran == [document.engines[0].sha256]
    assert find_unproven(document, read_verifications(uri, document)) == [
        "ONNX Runtime's CUDA provider",
        "fp16 arithmetic",
    ]
    assert Verification.load(f"{uri}/verified/sm89.json").engine_sha256 == gpu.ran[0]


@pytest.fixture
def serving_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which what Triton loads runs: its provider is the CPU's."""
    monkeypatch.setattr(verify_module, "gpu_target", lambda: "sm89")
    monkeypatch.setattr(onnx_run, "list_providers", lambda config: [CPU])
    return FakeGpu(monkeypatch)


@pytest.mark.usefixtures("serving_gpu")
def test_what_is_served_completes_its_proof_on_a_gpu_of_that_kind(
    copy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = storage.normalise(copy)
    document = ExportManifest.load(uri)
    code, said = verify(copy, capfd)
    assert code == 0, said
    assert (
        "passed        served         fp16" in said and "nothing is wrong; proven only on sm89 (a GPU); serves" in said
    )
    found = Verification.load(f"{uri}/verified/served.sm89.json")
    assert found.engine_sha256 == hash_file(copy / SERVED)
    (gate,) = found.gates
    assert {"relative_error at batch 1", f"relative_error at batch {document.engines[0].max_batch}"} <= {*gate.figures}
    require_proven(uri, document, allow_unproven=False)
    # On another kind of GPU another plan would be built.
    monkeypatch.setattr(verify_module, "gpu_target", lambda: "sm75")
    monkeypatch.setattr(onnx_run, "list_providers", lambda config: ["NoSuchProvider"])
    code, said = verify(copy, capfd)
    assert code == EXIT_UNPROVEN and "what is served, on sm75 (it ran on sm89)" in said, said
    monkeypatch.setattr(verify_module, "gpu_target", lambda: None)
    # Without the shards no gate runs again: this is about the folder.
    shutil.rmtree(copy.parents[1] / "shard")
    assert verify(copy, capfd)[0] == 0, "it is no stranger of the export"


@pytest.mark.usefixtures("serving_gpu")
def test_what_is_served_and_computes_something_else_fails(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = onnx.load(copy / SERVED)
    tensor = max(graph.graph.initializer, key=lambda item: len(item.dims))
    tensor.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(graph, copy / SERVED)
    mend(copy)
    assert failed_gates(copy, capfd) == {"served"}
    assert not (copy / "verified/served.sm89.json").exists()


def test_where_the_provider_is_not_what_is_served_stays_unproven(
    copy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if onnx_run.find_provider([CUDA]) is not None:
        pytest.skip("this machine has it")
    monkeypatch.setattr(verify_module, "gpu_target", lambda: "sm90")
    code, said = verify(copy, capfd)
    assert code == EXIT_UNPROVEN, said
    assert "not run       served         fp16  onnxruntime here has no CUDAExecutionProvider" in said
    assert not (copy / "verified").exists()


def test_a_changed_engine_never_runs(
    copy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu(monkeypatch)
    path = copy / "model.fp16.sm89.engine"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    code, said = verify(copy, capfd)
    assert (code, gpu.ran) == (1, []), said
    assert "engine sm89    fp16  checksum failed" in said
    assert not (copy / "verified").exists()


def test_an_engine_does_not_run_after_a_gate_that_failed(
    copy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu(monkeypatch)
    edit(copy, "labels.json", shuffle_labels)
    mend(copy)
    code, said = verify(copy, capfd)
    assert (code, gpu.ran) == (1, []), said
    assert "engine sm89    fp16  program failed" in said


def test_an_engine_that_is_exchanged_meanwhile_does_not_run(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, uri = FakeGpu(monkeypatch), storage.normalise(copy)
    document = ExportManifest.load(uri)
    (copy / "model.fp16.sm89.engine").unlink()
    (copy / "model.fp16.sm89.engine").write_bytes(b"other code")
    shards_uri = storage.normalise(copy.parents[1] / "shard" / document.shards_fingerprint)
    shards = ShardManifest.load(shards_uri)
    shipped = ExportedFiles.of(copy, document, shards_uri, shards)
    gate = _OnGpu(uri, shipped, document, shards_uri, tmp_path).judge_engine(document.engines[0])
    assert (gate.status, gpu.ran) == ("failed", [])


@pytest.mark.parametrize("name", ["triton/classifier/2/model.onnx", "numpy.py", "verified/sm80.json"])
def test_a_file_that_was_added_is_found(copy: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    (copy / name).write_bytes(b"")
    code, said = verify(copy, capfd)
    assert code == 1
    assert f"{name} is not of this export" in said


def test_a_file_whose_crc32c_was_kept_is_found_by_its_sha256(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # As if the other content had this crc32c: the manifest keeps the first sha256.
    document = ExportManifest.load(storage.normalise(copy))
    (copy / "predict.py").write_text("raise SystemExit")
    crc = FileEntry.of(storage.normalise(copy), "predict.py").model_dump(include={"bytes", "crc32c"})
    files = [entry.model_copy(update=crc if entry.name == "predict.py" else {}) for entry in document.files]
    (copy / MANIFEST_NAME).write_bytes(document.model_copy(update={"files": files}).sealed().to_json())
    code, said = verify(copy, capfd)
    assert code == 1
    assert "predict.py has sha256" in said


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(precision="int8"),
        lambda manifest: manifest.update(metrics={}),
        lambda manifest: manifest.update(graphs=[]),
    ],
    ids=["precision", "accuracy", "graphs"],
)
def test_a_manifest_that_contradicts_itself_fails_by_its_checksum(
    copy: Path, capfd: pytest.CaptureFixture[str], change: Callable[[Any], Any], seal: bool
) -> None:
    edit(copy, MANIFEST_NAME, change)
    if seal:
        document = ExportManifest.load(storage.normalise(copy)).sealed()
        (copy / MANIFEST_NAME).write_bytes(document.to_json())
    assert failed_gates(copy, capfd) == {"checksum"}


@pytest.mark.parametrize("values", [{"seal": ""}, {"opset": 21}, {"shards_fingerprint": "../../.."}])
def test_a_manifest_that_was_changed_fails_by_its_checksum(
    copy: Path, capfd: pytest.CaptureFixture[str], values: dict[str, Any]
) -> None:
    edit(copy, MANIFEST_NAME, change(**values))
    assert failed_gates(copy, capfd) == {"checksum"}


def test_a_manifest_with_a_nan_fails_by_its_checksum(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit(copy, MANIFEST_NAME, lambda manifest: manifest["metrics"]["fp32"].update(accuracy=float("nan")))
    assert failed_gates(copy, capfd) == {"checksum"}


def test_without_its_shards_the_program_is_not_tried(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy.parents[1] / "shard")
    code, said = verify(copy, capfd)
    assert code == EXIT_UNPROVEN
    assert "pass --shards" in said
    assert not any(line.startswith("passed") and " program " in line for line in said.splitlines())


def test_files_in_a_bucket_are_read_once_and_what_was_compared_runs(
    copy: Path, bucket_server: BucketServer, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = "gs://bucket-1/line/export/1"
    for path in copy.rglob("*"):
        if path.is_file():
            storage.publish(storage.join(uri, *path.relative_to(copy).parts), path.read_bytes())
    (shards,) = (copy.parents[1] / "shard").iterdir()
    code = main([uri, f"--shards={shards}"])
    said = capfd.readouterr().out
    assert code == EXIT_UNPROVEN, said
    assert any(line.startswith("passed") and " program " in line for line in said.splitlines())
    for name in (SERVED, "model.fp32.onnx", "predict.py"):
        assert len(bucket_server.access_log.entries(operation="objects.media", object=f"*/{name}")) == 1


def change_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [SERVED, "triton/classifier/config.pbtxt"])
def test_one_byte_of_what_is_served_stops_verify_upload_and_predict(
    copy: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """The document that proves it is whole: only the file is another."""
    task = tmp_path / "pipeline" / "run-1" / "register"
    served = {"artifacts": [{"uri": storage.normalise(copy)}]}
    outputs = {name: {"artifacts": [{"uri": storage.normalise(task / name)}]} for name in ("registered", "summary")}
    values = {"config": json.dumps({"run": {"root": str(tmp_path), "name": "line"}})}
    message = {
        "inputs": {"parameterValues": values, "artifacts": {"served": served}},
        "outputs": {"artifacts": outputs, "outputFile": str(task / "executor_output.json")},
    }
    upload = ["register", "--executor-input", json.dumps(message)]
    picture = tmp_path / "picture.png"
    Image.new("RGB", (32, 32)).save(picture)
    predict = [f"--folder={copy}", str(picture)]
    assert run_task(upload) == 0 and "refused" in (task / "executor_output.json").read_text()
    assert command.main(predict) == 0
    assert f"{Path(SERVED).name} by onnxruntime" in capfd.readouterr().err
    (task / "executor_output.json").unlink()

    change_byte(copy / name)
    shutil.rmtree(copy.parents[1] / "shard")
    assert failed_gates(copy, capfd) == {"checksum"}
    assert run_task(upload) == 2
    assert f"is damaged: {name} has crc32c" in capfd.readouterr().err
    assert not (task / "executor_output.json").exists()
    # The settings say how the model is run: both are used to predict.
    assert command.main(predict) == 2
    assert f"{name} has crc32c" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["triton/classifier/2/model.onnx", "triton/other/config.pbtxt"])
def test_a_file_that_triton_would_serve_besides_is_not_uploaded(copy: Path, name: str) -> None:
    (copy / name).parent.mkdir(parents=True)
    (copy / name).write_bytes(b"")
    uri = storage.normalise(copy)
    with pytest.raises(ConfigError, match=f"is damaged: {name} is not of this export"):
        require_proven(uri, ExportManifest.load(uri), allow_unproven=True)
    (copy / name).unlink()
    require_proven(uri, ExportManifest.load(uri), allow_unproven=True)
    (copy / "triton/classifier/labels.txt").unlink()
    with pytest.raises(ConfigError, match=r"labels\.txt is missing"):
        require_proven(uri, ExportManifest.load(uri), allow_unproven=True)


@pytest.mark.parametrize("name", ["model.fp16.sm89.engine", "predict.py"])
def test_a_changed_byte_is_found(copy: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    change_byte(copy / name)
    shutil.rmtree(copy.parents[1] / "shard")
    assert "checksum" in failed_gates(copy, capfd)


def shuffle_labels(labels: list[str]) -> list[str]:
    return labels[1:] + labels[:1]


def change(**values: Any) -> Callable[[Any], None]:
    return lambda preprocess: preprocess.update(values)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("labels.json", shuffle_labels),
        ("preprocess.json", change(mean=[0.4, 0.5, 0.5])),
    ],
    ids=["labels", "mean"],
)
def test_preprocessing_that_is_not_the_trainer_s_fails_the_program(
    copy: Path, capfd: pytest.CaptureFixture[str], name: str, mutate: Callable[[Any], Any]
) -> None:
    edit(copy, name, mutate)
    mend(copy)
    assert "program" in failed_gates(copy, capfd)


def test_a_graph_that_was_exchanged_does_not_fit_its_engine(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy.parents[1] / "shard")
    document = ExportManifest.load(storage.normalise(copy))
    engine = document.engines[0].model_copy(update={"onnx_sha256": "0" * 64})
    changed = document.model_copy(update={"engines": [engine]}).sealed()
    (copy / MANIFEST_NAME).write_bytes(changed.to_json())
    code, said = verify(copy, capfd)
    assert code == 1
    assert "was built from another graph" in said


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, said = verify(tmp_path, capfd)
    assert code == 2
    assert "nothing finished there" in said


def test_other_shards_are_refused(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shards = next((copy.parents[1] / "shard").iterdir())
    edit(shards, MANIFEST_NAME, lambda manifest: manifest.update(fingerprint="6" * 16))
    assert main([str(copy), "--shards", str(shards)]) == 2
    assert "made from shards 5555555555555555" in capfd.readouterr().err


def test_an_engine_without_its_gpu_says_what_to_do(copy: Path) -> None:
    document = ExportManifest.load(storage.normalise(copy))
    entry = document.engines[0]
    with pytest.raises(NoGpu, match=r"(?s)was built for sm89 \(l4.*no GPU.*predict\.py") as caught:
        open_engine(copy / entry.name, entry, document.signature)
    assert caught.value.exit_code == 2


def test_the_program_of_the_folder_is_not_executed(
    copy: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (copy / "predict.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    mend(copy)
    verify(copy, capfd)
    assert not (tmp_path / "ran").exists()


def test_weights_that_were_changed_with_their_checksums_fail_the_program(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = copy / "model.fp32.onnx"
    graph = onnx.load(path)
    tensor = max(graph.graph.initializer, key=lambda item: len(item.dims))
    weights = onnx.numpy_helper.to_array(tensor) * np.float32(1.3)
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
    onnx.save(graph, path)
    mend(copy)
    assert "program" in failed_gates(copy, capfd)
