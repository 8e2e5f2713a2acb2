"""Own code: what a configuration means by it, its archive, and the way into sys.path."""

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import own_code, storage
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.errors import ConfigError, DataError, ModelError
from contracts.fingerprint import code_inputs, export_inputs, profile_inputs, train_inputs
from contracts.own_code import (
    PinnedCode,
    code_folder,
    code_hash,
    install_code,
    named_code,
    pack,
    pin_code,
    publish_code,
    unpack,
)
from rehearsal.gcs import BucketServer
from trainer.model.user_code import load_callable


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "own_net.py").write_text("def net(num_classes): return num_classes\n")
    return folder


@pytest.fixture(autouse=True)
def _path_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_folders", [])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def config(path: Path | str = "", name: str = "own_net:net", **sections: Any) -> RunConfig:
    code = {"path": str(path), **sections.pop("code", {})}
    return parse_config({"model": {"architecture": name}, "code": code, **sections}, where="test")


def pinned(tmp_path: Path, given: RunConfig) -> PinnedCode:
    found = pin_code(given, storage.normalise(tmp_path / "line"))
    publish_code(found)
    return found


def fingerprints(given: RunConfig) -> list[dict[str, str]]:
    return [
        profile_inputs(given, shards="s", hardware={}, torch_version="t"),
        train_inputs(given, shards="s"),
        export_inputs(given, checkpoint="c", builder="b", tools={}),
    ]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path / "cache"))


def test_without_own_code_nothing_changes(tmp_path: Path) -> None:
    plain = parse_config({}, where="test")
    assert named_code(plain) == {} and pinned(tmp_path, plain) == PinnedCode(plain)
    assert not (tmp_path / "line").exists()
    path = [*sys.path]
    install_code(plain.code)
    assert sys.path == path and code_inputs(plain) == {}
    unused = pin_code(config(tmp_path, "resnet"), "file:///line")
    assert "has no effect" in unused.warnings[0] and unused.config == parse_config({}, where="test")


def test_the_hash_is_in_the_fingerprints_of_the_stages_that_run_it(tmp_path: Path, mine: Path) -> None:
    first = pinned(tmp_path, config(mine)).config
    sha256 = code_hash(first.code)
    assert Path(first.code.path) == tmp_path / "line" / "code" / f"{sha256}.tar.gz"
    for inputs, plain in zip(fingerprints(first), fingerprints(config(mine)), strict=True):
        assert inputs == plain | {"code": sha256}
    # The same files again are what is there.
    publish_code(pin_code(config(mine), storage.normalise(tmp_path / "line")))
    # What is pinned stays: the stages of a run need the user's folder no more.
    (mine / "own_net.py").write_text("def net(num_classes): return 2\n")
    assert pin_code(first, "file:///line") == PinnedCode(first)
    edited = pinned(tmp_path, config(mine)).config
    assert code_hash(edited.code) != sha256
    assert len(list((tmp_path / "line" / "code").iterdir())) == 2


def test_what_is_imported_is_the_archive_behind_everything_else(tmp_path: Path, mine: Path) -> None:
    found = pinned(tmp_path, config(mine)).config
    (mine / "own_net.py").write_text("raise RuntimeError('not this one')\n")
    install_code(found.code)
    folder = tmp_path / "cache" / "code" / code_hash(found.code)
    assert sys.path[-1] == str(folder) and code_folder() == folder
    assert str(mine) not in sys.path
    assert load_callable("model.architecture", "own_net:net", ModelError)(3) == 3
    assert sys.modules["own_net"].__file__ == str(folder / "own_net.py")
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    # Another process finds what was packed, whatever became of the copy since.
    for change in ("changed", "removed", "added"):
        if change == "removed":
            (folder / "own_net.py").unlink()
        else:
            changed = folder / ("own_net.py" if change == "changed" else "more.py")
            changed.write_text("def net(num_classes): return 9\n")
        assert unpack(Path(found.code.path).read_bytes(), found.code) == folder
        assert [path.name for path in folder.rglob("*.py")] == ["own_net.py"]
        assert "return 9" not in (folder / "own_net.py").read_text()


def test_without_a_writable_cache_a_temporary_folder_is_used(
    tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pinned(tmp_path, config(mine)).config
    # No folder can be made below a file, by root neither.
    (tmp_path / "cache").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    install_code(found.code)
    folder = code_folder()
    assert folder is not None and folder.parent.name.startswith("shardline-code-")
    assert load_callable("model.architecture", "own_net:net", ModelError)(3) == 3


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_an_archive_that_was_changed_or_is_gone_is_refused(tmp_path: Path, mine: Path, content: bytes | None) -> None:
    found = pinned(tmp_path, config(mine)).config
    archive = Path(found.code.path)
    if content is None:
        archive.unlink()
    else:
        archive.write_bytes(archive.read_bytes()[:-9] if content == b"" else content)
    with pytest.raises(DataError, match="is not there" if content is None else "was changed") as caught:
        install_code(found.code)
    assert caught.value.exit_code == 2 and not (tmp_path / "cache").exists()


def test_what_is_packed_is_code_alone_and_depends_on_paths_and_contents(tmp_path: Path, mine: Path) -> None:
    (mine / "own_pack" / "deep").mkdir(parents=True)
    (mine / "own_pack" / "__init__.py").write_text("")
    (mine / "own_pack" / "words.txt").write_text("ja")
    (mine / "own_pack" / "deep" / "more.py").write_text("")
    (mine / "config.yaml").write_text("run: {name: line}")
    for folder in (".git", "__pycache__", "venv", "runs", "out"):
        (mine / folder).mkdir()
        (mine / folder / "left_out.py").write_text("")
    (mine / "venv" / "pyvenv.cfg").write_text("")
    (mine / "out" / ".stage").write_text("train")
    # A line of another run.root.
    (mine / "line" / "runs" / "1").mkdir(parents=True)
    (mine / "line" / "runs" / "1" / "run-start.json").write_text("{}")
    (mine / "line" / "predict.py").write_text("")
    (mine / "own_link.py").symlink_to("own_net.py")
    tar, warnings = pack(mine, [mine / "runs"])
    (tmp_path / "code.tar").write_bytes(tar)
    with tarfile.open(tmp_path / "code.tar") as archive:
        assert archive.getnames() == [
            "own_net.py",
            "own_pack/__init__.py",
            "own_pack/words.txt",
            "own_pack/deep/more.py",
        ]
    assert [warning for warning in warnings if "own_link.py, below code.path, is a link" in warning] == warnings != []
    again = tmp_path / "again"
    shutil.copytree(mine, again, symlinks=True)
    os.utime(again / "own_net.py", (1, 1))
    assert pack(again, [again / "runs"])[0] == tar


def test_too_much_code_is_refused(mine: Path) -> None:
    (mine / "own_pack").mkdir()
    for name, size in (("__init__.py", 0), ("a.bin", own_code.MAX_BYTES // 2), ("b.bin", own_code.MAX_BYTES // 2)):
        (mine / "own_pack" / name).write_bytes(b"#" * size)
    with pytest.raises(ConfigError, match=r"more than 10 MB of code, most of it in own_pack"):
        pack(mine)


def test_what_is_nowhere_is_refused_with_the_cure(tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine)
    with pytest.raises(ModelError, match=r"'own_net:net': code\.path is not set") as caught:
        load_callable("model.architecture", "own_net:net", ModelError)
    assert "`code.path: .`" in caught.value.todo and caught.value.exit_code == 2
    install_code(pinned(tmp_path, config(mine)).config.code)
    with pytest.raises(ModelError, match="holds no module elsewhere"):
        load_callable("model.architecture", "elsewhere:net", ModelError)


def test_an_archive_in_a_bucket_is_found(tmp_path: Path, mine: Path, bucket_server: BucketServer) -> None:
    found = pin_code(config(mine), "gs://bucket-1/line")
    publish_code(found)
    # Another run of the same code.
    publish_code(found)
    install_code(found.config.code)
    assert load_callable("model.architecture", "own_net:net", ModelError)(3) == 3


def test_a_module_of_ours_is_not_replaced(tmp_path: Path, mine: Path) -> None:
    (mine / "records.py").write_text("raise RuntimeError('replaced')\n")
    install_code(pinned(tmp_path, config(mine)).config.code)
    import records

    assert records.__file__ is not None and not Path(records.__file__).is_relative_to(tmp_path)
    with pytest.raises(ConfigError, match=r"is shadowed by .*records/__init__\.py"):
        load_callable("model.architecture", "records:net", ModelError)
