"""The gate before production: decisions on exports, and the line's document; the judge itself is trainer's test."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from components.gate import (
    PRODUCTION_NAME,
    Decision,
    decide,
    put_into_production,
    read_production,
    record_decision,
    require_comparable,
)
from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.errors import DataError, TryAgain
from tests.export_fields import publish_export

COMPARISON = {
    "metric": "accuracy",
    "candidate": 0.91,
    "production": 0.95,
    "difference": -0.04,
    "interval": [-0.05, -0.03],
    "tolerance": 0.02,
    "limit": 0.02,
    "samples": 5000,
    "left_out": 0,
}


class Judge:
    """Answers for the command of the judge, with an exit code; its calls are kept."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.commands = list(codes), list[list[str]]()

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        self.commands.append(command)
        code = self.codes.pop(0)
        printed = json.dumps(COMPARISON).encode() if code < 2 else b""
        words = b"" if code < 2 else b"a warning\njudge: error: classes differ\n  to do: x"
        return subprocess.CompletedProcess(command, code, printed, words)


class Line:
    """A line of exports that are proven, and its gate."""

    def __init__(self, root: Path, **sections: Any) -> None:
        values = {"run": {"root": str(root), "name": "weekly"}, **sections}
        self.config: RunConfig = parse_config(values, where="test")
        self.uri = storage.join(storage.normalise(root), "weekly")

    def publish(self, fingerprint: str, **changes: Any) -> str:
        """Publish an export; return its URI."""
        uri = storage.join(self.uri, "export", fingerprint)
        publish_export(uri, fingerprint=fingerprint, **changes)
        return uri

    def decide(self, fingerprint: str, judge: Judge) -> Decision:
        """Decide on an export as both callers do."""
        before = read_production(self.uri)
        current = before.export_uri(self.uri) if before else None
        export, decided = storage.join(self.uri, "export", fingerprint), before.decided if before else {}
        decision = decide(self.config, export, "file:///shards", current=current, decided=decided, run=judge)
        record_decision(self.config, self.uri, f"run-of-{fingerprint[0]}", fingerprint, decision)
        return decision

    def production(self) -> str | None:
        """Return the run that is in production."""
        found = read_production(self.uri)
        return found.run if found else None


A, B, C = ("a" * 16, "b" * 16, "c" * 16)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    line = Line(tmp_path)
    for fingerprint in (A, B, C):
        line.publish(fingerprint)
    return line


def test_the_first_proven_export_goes_into_production_and_a_worse_one_never_does(line: Line) -> None:
    unproven = "d" * 16
    line.publish(unproven, device="")
    assert line.decide(unproven, Judge())["verdict"] == "refused" and line.production() is None
    first = line.decide(A, Judge())
    assert first["verdict"] == "production" and "proven on NVIDIA L4 (sm89)" in first["reason"]
    # The same export, and what was decided on before, start no judge.
    assert line.decide(A, Judge())["verdict"] == "production" and line.production() == "run-of-a"
    kept_out = line.decide(B, Judge(1))
    assert (kept_out["verdict"], kept_out["candidate"], line.production()) == ("kept out", 0.91, "run-of-a")
    assert "it loses more than 0.0200" in kept_out["reason"] and "shardline promote RUN" in kept_out["reason"]
    assert line.decide(B, Judge()) == kept_out
    judge = Judge(0)
    assert line.decide(C, judge)["verdict"] == "production" and line.production() == "run-of-c"
    (command,) = judge.commands
    assert f"--production={line.uri}/export/{A}" in command and "--tolerance=0.02" in command
    # What was replaced does not come back by itself.
    assert "replaced by run run-of-c" in line.decide(A, Judge())["reason"] and line.production() == "run-of-c"


def test_an_export_by_hand_is_in_production_and_what_it_replaced_is_not_judged_again(line: Line) -> None:
    line.decide(A, Judge())
    line.decide(B, Judge(0))
    put_into_production(line.config, line.uri, "run-of-a", A, "B names cats dogs")
    assert line.decide(B, Judge())["verdict"] == "kept out" and line.production() == "run-of-a"
    found = read_production(line.uri)
    assert found is not None and found.why == "B names cats dogs" and A not in found.decided


def test_what_cannot_be_compared_stays_out_and_a_judge_that_breaks_decides_nothing(line: Line) -> None:
    line.decide(A, Judge())
    refused = line.decide(B, Judge(2))
    assert refused["verdict"] == "not compared" and refused["reason"].startswith("classes differ\n")
    assert line.production() == "run-of-a"
    with pytest.raises(TryAgain, match="ended with 75: classes differ"):
        line.decide(C, Judge(75))
    assert line.decide(C, Judge(0))["verdict"] == "production"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"line": "daily"}, "is of line daily"),
        ({"task": "text_classification"}, "is of task text_classification"),
        ({"fingerprint": "e" * 16}, "which is gone"),
    ],
)
def test_a_document_that_is_damaged_or_of_something_else_is_refused(
    line: Line, changes: dict[str, Any], words: str
) -> None:
    require_comparable(line.config, line.uri)
    line.decide(A, Judge())
    require_comparable(line.config, line.uri)
    uri = storage.join(line.uri, PRODUCTION_NAME)
    content = json.dumps({**json.loads(storage.read_bytes(uri)), **changes}).encode()
    storage.replace(uri, content)
    with pytest.raises(DataError, match=words) as caught:
        require_comparable(line.config, line.uri)
    assert caught.value.allowed and caught.value.todo
    assert storage.read_bytes(uri) == content
