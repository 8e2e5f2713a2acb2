"""The frame of a stage: reuse, locks, errors, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ProfileChoice, ProfileReport
from contracts.errors import ConfigError, TryAgain
from contracts.events import ERROR_NAME, EVENTS_NAME, EventReader
from contracts.fingerprint import combine
from contracts.output import Lock
from contracts.stage import Stage, run_stage
from inspection.stages import find_output

MADE_FROM = {"model": "m", "shards": "s"}


# A process that claims the folder and keeps it.
HOLD = """
import sys, time
from contracts.artifacts import ProfileReport
from contracts.stage import run_stage
def hold(stage):
    stage.claim(ProfileReport, {"model": "m", "shards": "s"})
    print("held", flush=True)
    time.sleep(60)
run_stage("profile", hold, sys.argv[1:])
"""


def make_report(fingerprint: str, made_from: dict[str, str]) -> ProfileReport:
    return ProfileReport(
        fingerprint=fingerprint,
        made_from=made_from,
        model_fingerprint="m",
        shards_fingerprint="s",
        hardware={},
        torch_version="2",
        ranks=2,
        threads_per_rank=1,
        global_batch_size=64,
        points=[],
        choice=ProfileChoice(slot_size=32, num_workers=0, reason="r"),
    )


def work(stage: Stage, made_from: dict[str, str] = MADE_FROM) -> str:
    output = stage.claim(ProfileReport, made_from)
    if not output.reused:
        stage.ready()
        stage.commit(output, make_report(output.fingerprint, made_from), "a report")
    return output.uri


def events_of(root: Path, attempt: str) -> list[str]:
    reader = EventReader(root / "attempts" / attempt / EVENTS_NAME)
    return [str(event["event"]) for event in reader.poll()]


def run(root: Path, attempt: str, *more: str, execute: object = work) -> int:
    arguments = ["--root", str(root), "--config-json", "{}", "--attempt", attempt, *more]
    return run_stage("profile", execute, arguments)  # type: ignore[arg-type]


def test_work_is_done_once_then_reused_then_done_afresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "a") == 0
    uri = capsys.readouterr().out.splitlines()[-1]
    assert storage.exists(storage.join(uri, MANIFEST_NAME))
    assert events_of(tmp_path, "a") == ["start", "folder", "ready", "finish"]
    assert run(tmp_path, "b") == 0
    assert events_of(tmp_path, "b") == ["start", "folder", "reused"]
    assert run(tmp_path, "c", "--fresh") == 0
    assert events_of(tmp_path, "c") == ["start", "folder", "ready", "finish"]
    assert capsys.readouterr().out.splitlines() == [uri, uri]


def test_fresh_deletes_its_own_output_only(tmp_path: Path) -> None:
    other = tmp_path / "0123456789abcdef"
    other.mkdir()
    (other / MANIFEST_NAME).write_text("{}")
    assert run(tmp_path, "a") == 0
    assert run(tmp_path, "b", "--fresh") == 0
    assert (other / MANIFEST_NAME).exists()
    assert (tmp_path / "attempts/a").is_dir()


def test_locate_prints_or_refuses_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "a", "--locate") == 2
    assert "run `shardline profile CONFIG` first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert run(tmp_path, "b") == 0
    uri = capsys.readouterr().out.splitlines()[-1]
    assert run(tmp_path, "c", "--locate") == 0
    assert capsys.readouterr().out.splitlines() == [uri]
    changed = {"model": "m", "shards": "t"}
    assert run(tmp_path, "d", "--locate", execute=lambda stage: work(stage, changed)) == 2
    assert "was made with another shards\n" in capsys.readouterr().err


def test_an_output_of_other_inputs_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--output", str(tmp_path / "mine"), "--config-json", "{}"]
    assert run_stage("profile", work, arguments) == 0
    before = (tmp_path / "mine" / MANIFEST_NAME).read_bytes()
    assert run_stage("profile", lambda stage: work(stage, {"model": "m", "shards": "t"}), arguments) == 2
    assert "other inputs (shards)" in capsys.readouterr().err
    assert (tmp_path / "mine" / MANIFEST_NAME).read_bytes() == before


@pytest.mark.parametrize("options", [[], ["--fresh"]])
def test_a_folder_that_is_not_ours_is_left_alone(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "thesis"
    (folder / "chapters").mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    arguments = ["--output", str(folder), "--config-json", "{}", *options]
    assert run_stage("profile", work, arguments) == 2
    assert "holds files that stage profile did not write (chapters, thesis.txt)" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["chapters", "thesis.txt"]
    assert run_stage("profile", work, ["--output", str(tmp_path / "mine"), "--config-json", "{}"]) == 0
    assert run_stage("train", work, ["--output", str(tmp_path / "mine"), "--config-json", "{}"]) == 2
    assert "belongs to another stage" in capsys.readouterr().err


def test_a_damaged_manifest_below_our_root_is_made_again(tmp_path: Path) -> None:
    assert run(tmp_path, "a") == 0
    manifest = next(tmp_path.glob(f"*/{MANIFEST_NAME}"))
    whole = manifest.read_bytes()
    manifest.write_bytes(b'{"kind": "pro')
    assert run(tmp_path, "b") == 0
    assert manifest.read_bytes() == whole


def test_a_manifest_of_another_version_is_not_overwritten(tmp_path: Path) -> None:
    assert run(tmp_path, "a") == 0
    manifest = next(tmp_path.glob(f"*/{MANIFEST_NAME}"))
    newer = manifest.read_bytes().replace(b'"format_version": 3', b'"format_version": 99')
    manifest.write_bytes(newer)
    assert run(tmp_path, "b") == 2
    assert manifest.read_bytes() == newer


def test_a_user_error_leaves_its_message_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(stage: Stage) -> str:
        raise ConfigError("a wheel with corners", allowed="round ones", todo="file them off")

    assert run(tmp_path, "a", execute=refuse) == 2
    shown = capsys.readouterr().err
    assert "a wheel with corners\n  allowed: round ones\n  to do: file them off" in shown
    assert "Traceback" not in shown
    document = json.loads((tmp_path / "attempts/a" / ERROR_NAME).read_text())
    assert document["exit_code"] == 2
    assert document["kind"] == "ConfigError"
    assert events_of(tmp_path, "a")[-1] == "error"


def test_ctrl_c_is_an_interruption_and_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(stage: Stage) -> str:
        raise KeyboardInterrupt

    assert run(tmp_path, "a1", execute=interrupted) == 130
    assert capsys.readouterr().err == "profile: error: interrupted by SIGINT; the same command again continues\n"
    assert events_of(tmp_path, "a1") == ["start", "interrupted", "error"]


def test_a_fault_of_ours_is_70_and_keeps_its_traceback(tmp_path: Path) -> None:
    def fail(stage: Stage) -> str:
        raise ZeroDivisionError("oops")

    assert run(tmp_path, "a", execute=fail) == 70
    document = json.loads((tmp_path / "attempts/a" / ERROR_NAME).read_text())
    assert document["message"] == "ZeroDivisionError: oops"
    assert "Traceback" in document["traceback"]


def test_a_folder_in_use_is_75_and_free_again_after_a_kill(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            *("--root", str(tmp_path), "--config-json", "{}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        messages = []

        def try_it(stage: Stage) -> str:
            with pytest.raises(TryAgain) as caught:
                work(stage)
            messages.append(str(caught.value))
            raise caught.value

        assert run(tmp_path, "a", execute=try_it) == 75
        assert f"pid {holder.pid}" in messages[0]
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()
    assert run(tmp_path, "b") == 0


def test_a_lock_is_removed_at_the_end_and_never_held_twice(tmp_path: Path) -> None:
    uri = storage.normalise(tmp_path / "out")
    lock = Lock(uri)
    with pytest.raises(TryAgain, match=f"pid {os.getpid()}"):
        Lock(uri)
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    assert run(tmp_path, "a") == 0
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--root", "a"],
        ["--root", "a", "--config-json", "{"],
        ["--root", "/dev/null/x", "--config-json", "{}"],
    ],
)
def test_bad_arguments_are_user_errors(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_stage("profile", work, arguments) == 2
    assert "to do:" in capsys.readouterr().err


def test_a_stage_that_works_for_a_run_says_where_its_output_is(tmp_path: Path) -> None:
    line, at = storage.normalise(tmp_path), storage.normalise(tmp_path / "profile" / combine(MADE_FROM))
    given = ["--line", line, "--config-json", "{}", "--run"]
    assert find_output(line, "r1", "profile") is None
    for run_id in ("r1", "r2"):
        assert run_stage("profile", work, [*given, run_id]) == 0
        assert find_output(line, run_id, "profile") == at
    assert [name.partition(".")[0] for name in storage.list_names(storage.join(line, "profile", "attempts"))] == [
        "r1",
        "r2",
    ]
