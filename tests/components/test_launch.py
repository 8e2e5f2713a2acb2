import sys

import pytest

from components.launch import STAGE_MODULES, last_line, stage_command, stage_environment
from contracts.config import RunConfig
from contracts.process import JOB_ID_VARIABLE


def test_every_stage_has_a_command() -> None:
    command = stage_command("profile", RunConfig(), {"root": "r", "shards": ""}, flags=["fresh"])
    assert command[:3] == [sys.executable, "-m", STAGE_MODULES["profile"]]
    assert "--root=r" in command and command[-1] == "--fresh"
    assert any(word.startswith("--config-json={") for word in command)
    assert not any(word.startswith("--shards") for word in command)


def test_a_stage_is_in_no_job_of_vertex_ai(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code is read here: in one it would wait to be killed before it ends."""
    monkeypatch.setenv(JOB_ID_VARIABLE, "7")
    assert JOB_ID_VARIABLE not in stage_environment()


def test_the_last_line_that_is_not_blank_is_the_answer() -> None:
    assert last_line(b"chatter\nfile:///the/folder\n\n") == "file:///the/folder"
    assert last_line(b"\n \n") == ""
