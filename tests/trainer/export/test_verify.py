"""`shardline verify` and a finished export that was changed afterwards, whether its checksums were mended or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, Verification
from contracts.errors import EXIT_UNPROVEN, ConfigError, ShardlineError
from contracts.proof import UNPROVEN, read_verification, require_proven, verdict
from rehearsal.gcs import BucketServer
from tests.trainer.export import colours
from trainer.export import engine, verify
from trainer.export.verify import main

ENGINE = "model.fp32.sm89.engine"
SHIPPED = [colours.GRAPH_NAME, ENGINE, "labels.json", "pixels.py", "predict.py", "preprocess.json"]
Verify = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of shards and of an export with an engine, beside each other as `shardline run` writes them."""
    folder = tmp_path_factory.mktemp("line")
    colours.write_export(folder / "export" / "1", colours.write_shards(folder / "shard" / ("5" * 16)))
    colours.write_engine(folder / "export" / "1", b"an engine")
    return folder


@pytest.fixture
def folder(line: Path, tmp_path: Path) -> Path:
    shutil.copytree(line, tmp_path, dirs_exist_ok=True)
    return tmp_path / "export" / "1"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Verify a folder in this process; return exit code and output."""
    monkeypatch.setattr(verify, "run_step", lambda function, *arguments: (function(*arguments), None))

    def run(folder: Path | str, *options: str) -> tuple[int, str]:
        code = main([str(folder), *options])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out + captured.err

    return run


class Gpu:
    """A double of the engine's GPU, on which ONNX Runtime runs the fp32 graph: it proves nothing about engines."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[bytes] = []
        self.error: Exception | None = None
        self.factor = np.float32(1)
        self.sizes: set[int] = set()
        self.graph = engine.open_graph(folder / colours.GRAPH_NAME, threads=1)
        monkeypatch.setattr(verify, "gpu_target", lambda: "sm89")
        monkeypatch.setattr(verify, "device_name", lambda: "NVIDIA L4 (sm89)")
        monkeypatch.setattr(verify, "open_engine", self.open)

    def open(self, path: Path, builder: Any, signature: Any) -> engine.Runner:
        if self.error is not None:
            raise self.error
        self.ran.append(path.read_bytes())
        self.path = path
        return self.run

    def run(self, inputs: Any) -> Any:
        self.sizes.add(len(inputs["images"]))
        return {name: array * self.factor for name, array in self.graph(inputs).items()}


@pytest.fixture
def gpu(line: Path, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(line / "export" / "1", monkeypatch)


def test_a_sound_export_without_its_gpu_is_unproven(folder: Path, run: Verify) -> None:
    code, output = run(folder)
    assert code == EXIT_UNPROVEN, output
    *gates, last = output.splitlines()
    assert [line.split()[:3] for line in gates] == [
        ["passed", "checksum", MANIFEST_NAME],
        ["passed", "program", "predict.py"],
        ["not", "run", "parity"],
    ]
    assert "this machine has no GPU, the engine is for sm89 (l4" in gates[-1]
    assert last.startswith("nothing is wrong; unproven: not run on a GPU; the same command on a GPU of sm89 (l4")
    assert last.endswith(f"runs {ENGINE}")
    code, output = run(folder, "--json")
    assert [gate["name"] for gate in json.loads(output)["gates"]] == ["checksum", "program", "parity"]


def test_an_engine_that_passes_on_its_gpu_completes_the_proof(folder: Path, run: Verify, gpu: Gpu) -> None:
    code, output = run(folder)
    assert code == 0, output
    assert output.endswith("nothing is wrong; proven on NVIDIA L4 (sm89)\n")
    assert gpu.ran == [b"an engine"] and gpu.sizes == {1, 8, 16}
    assert not gpu.path.is_relative_to(folder), "what runs is a copy, whose hash was compared"
    uri = storage.normalise(folder)
    document = ExportManifest.load(uri)
    (gate,) = Verification.load(f"{uri}/verified/sm89.json").gates
    assert (gate.name, gate.file, gate.figures["samples"]) == ("parity", ENGINE, 72)
    require_proven(uri, document, allow_unproven=False)
    verification = folder / "verified" / "sm89.json"
    verification.write_bytes(verification.read_bytes().replace(document.sha256.encode(), b"0" * 64))
    gpu.error = ConfigError("another version is installed", allowed="the same", todo="install it")
    code, output = run(folder)
    assert code == EXIT_UNPROVEN and "parity   model.fp32.sm89.engine         another version is installed" in output


@pytest.mark.parametrize(("factor", "error"), [(1.01, None), (1, ShardlineError("the process died of SIGSEGV"))])
def test_an_engine_that_computes_something_else_fails(
    folder: Path, run: Verify, gpu: Gpu, factor: float, error: Exception | None
) -> None:
    assert run(folder)[0] == 0
    gpu.factor, gpu.error = np.float32(factor), error
    code, output = run(folder)
    assert code == 1 and output.endswith("failed: parity\n"), output
    uri = storage.normalise(folder)
    document = ExportManifest.load(uri)
    assert verdict(document, read_verification(uri, document)) == UNPROVEN, "the run before no longer counts"


def change_byte(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def edit(folder: Path, name: str, **values: Any) -> None:
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))


def change_sha256_alone(folder: Path) -> None:
    """Change a file as if the new content had the crc32c of the old one."""
    before = ExportManifest.load(storage.normalise(folder))
    (folder / "predict.py").write_text("raise SystemExit")
    after = colours.write_manifest(folder, engine=before.engine)
    pairs = zip(before.files, after.files, strict=True)
    files = [entry.model_copy(update={"sha256": old.sha256}) for old, entry in pairs]
    (folder / MANIFEST_NAME).write_bytes(after.model_copy(update={"files": files}).sealed().to_json())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((partial(change_byte, name=name), f"{name} has crc32c") for name in (ENGINE, "predict.py")),
        (partial(edit, name=MANIFEST_NAME, shards_fingerprint="../.."), "the manifest was changed"),
        (change_sha256_alone, "predict.py has sha256"),
        (lambda folder: (folder / "labels.json").unlink(), "labels.json is missing"),
        (lambda folder: (folder / "numpy.py").touch(), "numpy.py is not of this export"),
    ],
)
def test_any_change_is_found_and_nothing_runs(
    folder: Path, run: Verify, gpu: Gpu, change: Callable[[Path], None], words: str
) -> None:
    assert {entry.name for entry in ExportManifest.load(storage.normalise(folder)).shipped_files()} == set(SHIPPED)
    change(folder)
    code, output = run(folder)
    assert code == 1 and words in output and output.endswith("differs from the export that was published\n"), output
    assert gpu.ran == []


def test_with_mended_checksums_the_program_fails_and_no_code_of_the_export_runs(
    folder: Path, run: Verify, gpu: Gpu, tmp_path: Path
) -> None:
    (folder / "labels.json").write_text(json.dumps(colours.CLASSES[1:] + colours.CLASSES[:1]))
    (folder / "predict.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    colours.write_engine(folder, b"an engine")
    code, output = run(folder)
    assert code == 1 and output.endswith("failed: program\n"), output
    assert gpu.ran == [] and not (tmp_path / "ran").exists()


def test_without_its_shards_only_checksums_are_compared(folder: Path, run: Verify, gpu: Gpu, tmp_path: Path) -> None:
    shards = tmp_path / "other"
    (tmp_path / "shard" / ("5" * 16)).rename(shards)
    code, output = run(folder)
    assert code == EXIT_UNPROVEN and output.count("pass --shards") == 2 and gpu.ran == []
    assert run(folder, f"--shards={shards}")[0] == 0
    edit(shards, MANIFEST_NAME, fingerprint="6" * 16)
    code, output = run(folder, f"--shards={shards}")
    assert code == 2 and "made from shards 5555555555555555" in output
    assert run(tmp_path)[0] == 2


def test_an_engine_of_an_own_task_is_tried_with_noise(folder: Path, run: Verify, gpu: Gpu) -> None:
    document = ExportManifest.load(storage.normalise(folder))
    colours.write_manifest(folder, task="module:Task", engine=document.engine)
    code, output = run(folder)
    assert code == 0 and "program" not in output, output


def test_files_in_a_bucket_are_read_once(folder: Path, run: Verify, bucket_server: BucketServer) -> None:
    uri = "gs://bucket-1/line/export/1"
    for path in folder.iterdir():
        storage.publish(storage.join(uri, path.name), path.read_bytes())
    code, output = run(uri, f"--shards={folder.parents[1] / 'shard' / ('5' * 16)}")
    assert code == EXIT_UNPROVEN and "passed   program" in output, output
    for name in SHIPPED:
        assert len(bucket_server.access_log.entries(operation="objects.media", object=f"*/{name}")) == 1
