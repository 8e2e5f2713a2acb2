"""Own code: what a configuration means by it, its copy, and the way into sys.path."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import own_code, storage
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.errors import ConfigError, DataError, ModelError, UserError
from contracts.fingerprint import code_inputs, export_inputs, profile_inputs, train_inputs
from contracts.own_code import (
    PinnedCode,
    append_code,
    code_folder,
    install_code,
    named_code,
    open_code,
    pin_code,
    publish_code,
    with_installed,
)
from rehearsal.gcs import BucketServer
from trainer.model.user_callable import load_callable


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


def test_without_own_code_nothing_changes(tmp_path: Path) -> None:
    plain = parse_config({}, where="test")
    assert named_code(plain) == {} and pinned(tmp_path, plain) == PinnedCode(plain)
    assert not (tmp_path / "line").exists()
    path = [*sys.path]
    install_code(plain.code)
    assert sys.path == path and code_inputs(plain) == {}
    unused = pin_code(config(tmp_path, "resnet"), "file:///line")
    assert "has no effect" in unused.warnings[0] and unused.config == parse_config({}, where="test")


def test_all_that_may_name_own_code_is_known() -> None:
    given = parse_config(
        {
            "model": {"architecture": "a:b"},
            "data": {"transform": "c:d"},
            "task": {"name": "image_classification", "arguments": {"loss": "e:f"}},
        },
        where="test",
    )
    assert list(named_code(given).values()) == ["a:b", "c:d", "e:f"]
    own = parse_config({"task": {"name": "mine:Task", "arguments": {"loss": "ratio 1:2"}}}, where="test")
    assert named_code(own) == {"task.name": "mine:Task"}


def test_the_hash_is_in_the_fingerprints_of_the_stages_that_run_it(tmp_path: Path, mine: Path) -> None:
    first = pinned(tmp_path, config(mine)).config
    assert Path(first.code.path) == tmp_path / "line" / "code" / first.code.sha256
    for inputs, plain in zip(fingerprints(first), fingerprints(config(mine)), strict=True):
        assert inputs == plain | {"code": first.code.sha256}
    # The same files again are what is there.
    publish_code(pin_code(config(mine), storage.normalise(tmp_path / "line")))
    # What is pinned stays: the stages of a run need the user's folder no more.
    (mine / "own_net.py").write_text("def net(num_classes): return 2\n")
    assert pin_code(first, "file:///line") == PinnedCode(first)
    edited = pinned(tmp_path, config(mine)).config
    assert edited.code.sha256 != first.code.sha256
    assert len(list((tmp_path / "line" / "code").iterdir())) == 2
    with pytest.raises(ConfigError, match=r"code\.sha256 is"):
        pin_code(config(mine, code={"sha256": first.code.sha256}), "file:///line")


def test_what_is_imported_is_the_copy_behind_everything_else(tmp_path: Path, mine: Path) -> None:
    found = pinned(tmp_path, config(mine)).config
    (mine / "own_net.py").write_text("raise RuntimeError('not this one')\n")
    install_code(found.code)
    folder = Path(found.code.path) / "files"
    assert sys.path[-1] == str(folder) and code_folder() == folder
    assert str(mine) not in sys.path
    assert load_callable("model.architecture", "own_net:net", ModelError)(3) == 3
    assert sys.modules["own_net"].__file__ == str(folder / "own_net.py")
    # The file that importing it has left is no change.
    assert open_code(found.code) == folder


@pytest.mark.parametrize("change", ["changed", "removed", "added", "manifest", "gone"])
def test_a_copy_that_was_changed_is_refused(tmp_path: Path, mine: Path, change: str) -> None:
    found = pinned(tmp_path, config(mine)).config
    copy = Path(found.code.path)
    if change == "changed":
        (copy / "files" / "own_net.py").write_text("net = None\n")
    elif change == "removed":
        (copy / "files" / "own_net.py").unlink()
    elif change == "added":
        (copy / "files" / "own_more.py").write_text("")
    elif change == "manifest":
        (copy / "manifest.json").write_text(json.dumps({"files": {}, "requirements": ""}))
    else:
        (copy / "manifest.json").unlink()
    with pytest.raises(DataError) as caught:
        install_code(found.code)
    words = {"manifest": "manifest.json is of other files", "gone": "is not there"}
    assert words.get(change, f"was {change}") in caught.value.given and caught.value.exit_code == 2
    assert str(copy / "files") not in sys.path


def test_what_is_nowhere_is_refused_with_the_cure(mine: Path) -> None:
    with pytest.raises(ConfigError, match=r"'own_net:net': code\.path is not set") as caught:
        pin_code(config(), "file:///line")
    assert "`code.path: .`" in caught.value.todo and caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="holds no module elsewhere"):
        pin_code(config(mine, "elsewhere:net"), "file:///line")


def test_the_working_folder_is_not_searched(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine)
    with pytest.raises(ModelError, match=r"code\.path is not set"):
        load_callable("model.architecture", "own_net:net", ModelError)


def test_a_module_of_ours_is_not_replaced_and_that_is_said(tmp_path: Path, mine: Path) -> None:
    (mine / "records.py").write_text("raise RuntimeError('replaced')\n")
    found = pinned(tmp_path, config(mine)).config
    install_code(found.code)
    load_callable("model.architecture", "own_net:net", ModelError)
    import records

    assert records.__file__ is not None and not Path(records.__file__).is_relative_to(tmp_path)
    # Who imports it would be given ours.
    (mine / "own_net.py").write_text("def net(n):\n    from records import something\n")
    with pytest.raises(ConfigError, match=r"own_net\.py imports records") as caught:
        pin_code(config(mine), "file:///line")
    assert str(Path(records.__file__)) in caught.value.given
    with pytest.raises(ConfigError, match=r"is shadowed by .*records/__init__\.py"):
        load_callable("model.architecture", "records:net", ModelError)


def test_a_folder_of_data_is_no_module(mine: Path) -> None:
    (mine / "own_net.py").write_text("import json\ndef net(n): return n\n")
    (mine / "json").mkdir()
    (mine / "json" / "names.json").write_text("[]")
    found = pin_code(config(mine, code={"include": ["json/*.json"]}), "file:///line")
    assert found.files is not None and "json/names.json" in found.files.contents


def test_a_module_that_another_folder_shadows_is_named(tmp_path: Path, mine: Path) -> None:
    found = pinned(tmp_path, config(mine)).config
    other = tmp_path / "other"
    other.mkdir()
    (other / "own_net.py").write_text("def net(num_classes): return 0\n")
    # As PYTHONPATH does.
    sys.path.insert(0, str(other))
    install_code(found.code)
    with pytest.raises(UserError, match=f"shadowed by {other / 'own_net.py'}") as caught:
        load_callable("model.architecture", "own_net:net", ModelError)
    assert caught.value.exit_code == 2 and "PYTHONPATH" in caught.value.todo


def test_another_folder_replaces_the_first(tmp_path: Path, mine: Path) -> None:
    append_code(mine)
    assert load_callable("model.architecture", "own_net:net", ModelError)(3) == 3
    second = tmp_path / "second"
    second.mkdir()
    (second / "own_net.py").write_text("def net(num_classes): return -1\n")
    append_code(second)
    assert sys.path[-1] == str(second) and str(mine) not in sys.path
    assert load_callable("model.architecture", "own_net:net", ModelError)(3) == -1


def test_installed_code_is_named_by_distribution_version_and_files(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "own_pack-1.5.dist-info").mkdir(parents=True)
    (packages / "own_pack-1.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: own-pack\nVersion: 1.5\n"
    )
    (packages / "own_pack-1.5.dist-info" / "top_level.txt").write_text("own_pack\n")
    (packages / "own_pack").mkdir()
    (packages / "own_pack" / "__init__.py").write_text("def net(num_classes): return 7\n")
    sys.path.insert(0, str(packages))
    found = pin_code(config(name="own_pack:net"), "file:///line")
    assert found.files is None and found.config.code.installed == {"own_pack": ""}
    one = with_installed(found.config)
    assert one.code.installed["own_pack"].startswith("own-pack 1.5 sha256:")
    assert all(set(inputs) >= {"installed code"} for inputs in fingerprints(one))
    install_code(one.code)
    assert load_callable("model.architecture", "own_pack:net", ModelError)(3) == 7
    (packages / "own_pack" / "__init__.py").write_text("def net(num_classes): return 8\n")
    assert code_inputs(with_installed(found.config)) != code_inputs(one)
    # What this project and Python bring is known by other means.
    for name in ("trainer.model.build:build_model", "math:sin"):
        assert pin_code(config(name=name), "file:///line").config.code.installed == {}


def test_a_copy_in_a_bucket_is_opened_from_the_cache_and_checked(
    tmp_path: Path, mine: Path, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path / "cache"))
    (mine / "own_words").mkdir()
    (mine / "own_words" / "de.txt").write_text("ja")
    found = pin_code(config(mine, code={"include": ["own_words/*.txt"]}), "gs://bucket-1/line")
    publish_code(found)
    # Another run of the same code.
    publish_code(found)
    assert list(found.documents())[-1] == f"gs://bucket-1/line/code/{found.config.code.sha256}/manifest.json"
    install_code(found.config.code)
    folder = tmp_path / "cache" / "code" / found.config.code.sha256
    assert sys.path[-1] == str(folder) and (folder / "own_words" / "de.txt").read_text() == "ja"
    # A cache is not believed.
    (folder / "own_net.py").write_text("net = None\n")
    copy = open_code(found.config.code)
    assert (copy / "own_net.py").read_text() == (mine / "own_net.py").read_text()
    storage.replace(storage.join(found.config.code.path, "files", "own_net.py"), b"net = None\n")
    with pytest.raises(DataError, match=r"own_net\.py was changed"):
        open_code(found.config.code)


def test_a_spawned_process_finds_the_modules(tmp_path: Path, mine: Path) -> None:
    """As a loader process or a step of the export: from another folder, with a safe path."""
    found = pinned(tmp_path, config(mine)).config
    code = (
        "import multiprocessing, sys\n"
        "from contracts.config import CodeSection\n"
        "from contracts.own_code import install_code\n"
        "if __name__ == '__main__':\n"
        f"    install_code(CodeSection(path={found.code.path!r}, sha256={found.code.sha256!r}))\n"
        "    import own_net\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(own_net.net, (5,)))\n"
    )
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(code)
    done = subprocess.run([sys.executable, "-P", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "5\n", done.stderr
