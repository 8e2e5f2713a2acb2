"""Everything a user can get wrong with a source: exit code 2, one message, no manifest, no traceback."""

import json
import os
import subprocess
import sys

import pytest

from sharding import folders, reading
from sharding import samples as sample_module
from tests.sharding.reading import read_found


def check_refused(result, *words, code=2):
    """Check exit code and message, and that nothing looks finished."""
    assert result.code == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error:") == 1
    if code == 2:
        assert "allowed: " in result.stderr and "to do: " in result.stderr
    for word in words:
        assert word in result.stderr
    (error,) = result.errors
    assert error["exit_code"] == code
    assert error["message"] in result.stderr
    assert not list(result.root.glob("*/manifest.json"))


@pytest.mark.parametrize(
    ("files", "source", "words"),
    [
        ([], "", ["sharding.source is not set"]),
        ([], "{place}/nowhere", ["nowhere does not exist"]),
        (["file.png"], "{place}/file.png", ["is a file, but no manifest"]),
        ([], "gs://bucket/raw", ["gs://"]),
        ([], "memory://raw", ["memory://raw"]),
        (["empty/"], "{place}/empty", ["no class folder"]),
        (["flat/1.png"], "{place}/flat", ["no class folder and 1 files outside"]),
        (["hollow/a/", "hollow/b/"], "{place}/hollow", ["is empty"]),
        (["one/cat/1.png"], "{place}/one", ["a single class (cat)", "at least two classes"]),
    ],
)
def test_a_source_that_is_none(run_shard, tmp_path, write_file, make_image, files, source, words):
    for path in files:
        if path.endswith("/"):
            (tmp_path / path).mkdir(parents=True)
        else:
            write_file(tmp_path, path.encode(), make_image(1, "png"))
    check_refused(run_shard(source=source.format(place=tmp_path)), *words)


def test_class_without_a_training_image(run_shard, source):
    (source / "dog").mkdir()
    check_refused(run_shard(), "no training sample of class dog")


def test_class_that_loses_its_last_training_image(run_shard, source, write_file):
    for number in range(5):
        write_file(source, b"dog/%d.png" % number, b"no image")
    check_refused(run_shard(max_rejected_fraction=1.0), "no training sample of class dog")


@pytest.mark.parametrize("folder", [b"raw", b"bee"])
def test_unreadable_folder(run_shard, monkeypatch, folder):
    scandir = os.scandir

    # root reads everything, so the refusal of the system is put in its place.
    def refuse(path):
        if isinstance(path, bytes) and path.endswith(folder):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(folders.os, "scandir", refuse)
        result = run_shard()
    check_refused(result, folder.decode(), "cannot be read: Permission denied")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_root_without_rights_of_root(run_shard, source):
    source.chmod(0)
    try:
        check_refused(run_shard(), "cannot be read")
    finally:
        source.chmod(0o755)


def test_unreadable_file(run_shard, monkeypatch, in_process):
    def refuse(path, mode, buffering):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(reading, "open", refuse, raising=False)
    check_refused(run_shard(), "cannot be read: permission denied")


def test_broken_link_and_loop(run_shard, source):
    (source / "ant" / "link.png").symlink_to(source / "nowhere")
    check_refused(run_shard(root="broken"), "ant/link.png", "cannot be read")
    (source / "ant" / "link.png").unlink()
    (source / "ant" / "loop").symlink_to(source / "ant")
    check_refused(run_shard(root="loop"), "ant/loop", "link to a folder above it")


def test_links_to_files_and_folders_are_followed(run_shard, source, tmp_path, write_file, make_image):
    write_file(tmp_path, b"elsewhere/1.png", make_image(901, "png"))
    (source / "ant" / "folder").symlink_to(tmp_path / "elsewhere")
    (source / "ant" / "file.png").symlink_to(tmp_path / "elsewhere" / "1.png")
    assert sum(split.samples for split in run_shard().manifest.splits.values()) == 62


def test_pipe_in_the_source(run_shard, source):
    os.mkfifo(source / "ant" / "pipe")
    check_refused(run_shard(), "neither a file nor a folder")


def test_damaged_images_are_left_out_and_listed(run_shard, source, make_image, write_file):
    png, jpeg = make_image(300, "png"), make_image(301, "jpg")
    damaged = {
        "ant/corrupt.png": png[:60] + b"\0\0\0\0" + png[64:],
        "ant/truncated.jpg": jpeg[: len(jpeg) // 2],
        "ant/zero.png": b"",
        "bee/text\n.png": b"hello",
    }
    for path, content in damaged.items():
        write_file(source, path.encode(), content)
    result = run_shard(max_rejected_fraction=0.1)
    assert result.code == 0, result.stderr
    assert [entry.path for entry in result.manifest.rejected] == [
        "ant/corrupt.png",
        "ant/truncated.jpg",
        "ant/zero.png",
        "bee/text%0A.png",
    ]
    reasons = [entry.reason for entry in result.manifest.rejected]
    assert "damaged png" in reasons[0] and "damaged jpeg" in reasons[1]
    assert "empty" in reasons[2] and "known format" in reasons[3]
    stored = {one.content for one in read_found(result.folder)}
    assert len(stored) == 60 and not stored & set(damaged.values())
    assert "4 rejected" in result.events[-1]["made"]


def add_damaged(source, write_file, number):
    for one in range(number):
        write_file(source, b"bee/bad%02d.png" % one, b"junk %d" % one)


def test_too_many_damaged_images(run_shard, source, write_file):
    add_damaged(source, write_file, 12)
    result = run_shard()
    check_refused(result, " of 72 files cannot be used as images:\n    bee/bad", "sharding.max_rejected_fraction")


def test_the_limit_can_be_raised_and_holds_for_finished_shards(run_shard, source, write_file):
    add_damaged(source, write_file, 2)
    assert run_shard().code == 2
    raised = run_shard(max_rejected_fraction=0.5)
    assert raised.code == 0 and len(raised.manifest.rejected) == 2
    lowered = run_shard(max_rejected_fraction=0.01)
    assert lowered.code == 2 and "2 of 62 files" in lowered.stderr
    assert (raised.folder / "manifest.json").exists()


def test_a_shard_that_loses_all_its_images_is_no_file(run_shard, source, write_file):
    add_damaged(source, write_file, 8)
    for path in source.rglob("*.*"):
        path.write_bytes(path.read_bytes().ljust(4096, b"\0"))  # each file a shard
    result = run_shard(target_shard_bytes=4096, max_rejected_fraction=0.5)
    assert result.code == 0, result.stderr
    assert len(result.manifest.shards) == 60
    assert len(list(result.folder.glob("*.tar"))) == 60
    assert [one.shard for one in read_found(result.folder)] == list(range(60))


@pytest.mark.parametrize("what", ["vanished", "changed", "grew"])
def test_a_source_that_changes_under_the_stage(run_shard, source, monkeypatch, in_process, what):
    read_once = reading._read_once
    victim = source / "cow" / "32.png"

    def meddle(*arguments):
        if what == "vanished":
            victim.unlink(missing_ok=True)
        elif what == "changed":
            os.utime(victim)
        else:
            victim.write_bytes(b"other content")
        return read_once(*arguments)

    monkeypatch.setattr(reading, "_read_once", meddle)
    word = "vanished" if what == "vanished" else "changed"
    check_refused(run_shard(), f"cow/32.png in {source} {word}", code=75)


def test_a_read_that_fails_once_is_tried_again(run_shard, monkeypatch, in_process):
    read_once, failures = reading._read_once, iter([OSError(5, "Input/output error")])

    def fail_once(*arguments):
        if error := next(failures, None):
            raise error
        return read_once(*arguments)

    monkeypatch.setattr(reading, "_read_once", fail_once)
    assert run_shard().code == 0


def test_a_read_that_keeps_failing_is_for_another_attempt(run_shard, monkeypatch, in_process):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reading, "_read_once", fail)
    check_refused(run_shard(), "Input/output error", code=75)


def test_a_fault_of_ours_is_no_user_error(run_shard, monkeypatch, in_process, caplog):
    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(sample_module, "check", fail)
    result = run_shard()
    assert result.code == 70 and "a bug" in result.stderr and "Traceback" not in result.stderr
    assert not list(result.root.glob("*/manifest.json"))


@pytest.mark.parametrize("place", ["", "ant", "runs/1"])
def test_output_inside_of_the_source(run_shard, source, place):
    output = source / place / "shards" if place else source
    result = run_shard("--output", str(output))
    assert result.code == 2 and "is inside of sharding.source" in result.stderr
    assert not list(source.rglob("*.tar"))
    rooted = run_shard(root=str(output))
    assert rooted.code == 2 and "is inside of sharding.source" in rooted.stderr


def test_output_that_is_a_file(run_shard, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_bytes(b"mine")
    result = run_shard("--output", str(tmp_path / "out" / "file"))
    assert result.code == 2 and "cannot be written" in result.stderr
    assert (tmp_path / "out" / "file").read_bytes() == b"mine"


def test_file_system_without_hard_links(run_shard, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    check_refused(run_shard(), "file system with hard links")


def test_absent_classes_and_names_that_differ_in_case_are_warnings(run_shard, source, make_image, write_file):
    for number in range(6):
        write_file(source, b"Bee/%d.png" % number, make_image(500 + number, "png"))
    result = run_shard(splits={"train": 0.98, "validation": 0.01, "test": 0.01})
    assert result.code == 0, result.stderr
    assert "warning: the validation split has no sample of class" in result.stderr
    assert "warning: classes Bee and bee differ only in" in result.stderr


@pytest.mark.parametrize("arguments", [["missing"], ["damaged"]])
def test_as_a_command(source, tmp_path, write_file, arguments):
    if arguments == ["damaged"]:
        add_damaged(source, write_file, 12)
    place = source if arguments == ["damaged"] else tmp_path / "nowhere"
    config = json.dumps({"sharding": {"source": str(place)}})
    command = [sys.executable, "-m", "sharding.task", "--config-json", config, "--root", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("shard: error: sharding.source ")
    assert "Traceback" not in done.stderr and "WARNING" not in done.stderr
    assert len(list((tmp_path / "out" / "attempts").glob("*/error.json"))) == 1
    assert not list((tmp_path / "out").glob("*/manifest.json"))
