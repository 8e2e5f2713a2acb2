"""A machine of a group that runs a stage: when it ends its group, against a stub of the metadata server and of resize.

The stub does not prove that Compute Engine takes the request.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "deploy/terraform/cluster/run_stage.py"
METADATA = {
    "project/project-id": "acme",
    "instance/zone": "projects/1/zones/us-central1-a",
    "instance/name": "photos-train-1",
    "instance/service-accounts/default/token": '{"access_token": "secret"}',
    "instance/attributes/stage": json.dumps(
        {
            "group": "photos-train",
            "nodes": 2,
            "image": "image",
            "command": ["python"],
            "env": {"NCCL_DEBUG": "INFO"},
            "deadline": "2100-01-01T00:00:00Z",
        }
    ),
}


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve metadata and `resize`; yield the requests that had the token. The first resize fails."""
    requests: list[str] = []
    failures = [503]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            value = METADATA.get(self.path.removeprefix("/computeMetadata/v1/"))
            known = value is not None and self.headers["Metadata-Flavor"] == "Google"
            self._answer(200 if known else 404, value or "")

        def do_POST(self) -> None:
            if failures:
                return self._answer(failures.pop(), "")
            if self.headers["Authorization"] == "Bearer secret":
                requests.append(self.path)
            self._answer(200, "{}")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    monkeypatch.setenv("COMPUTE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    server.server_close()


@pytest.fixture
def program(google: list[str]) -> Iterator[ModuleType]:
    handler = signal.getsignal(signal.SIGTERM)
    spec = importlib.util.spec_from_file_location("run_stage", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_stage"] = module
    spec.loader.exec_module(module)
    yield module
    signal.signal(signal.SIGTERM, handler)


NEXT_CODE = """
echo >> starts
code=$(head -n 1 codes)
test $(wc -l < codes) = 1 || sed -i 1d codes
exit $code
"""


class Run:
    """Runs of a command on a machine, its clock run ahead; the last exit code stays."""

    def __init__(self, program: ModuleType, index: int, codes: list[int], *, deadline_s: float = 1e6) -> None:
        self.seconds, self.reasons = 0.0, list[str]()
        member = program.Member("acme", "us-central1-a", "photos-train", 2, index, ["python"], "image", {}, deadline_s)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "starts").touch()
            (folder / "codes").write_text("".join(f"{code}\n" for code in codes))
            command = ["sh", "-c", f"cd {folder} && {NEXT_CODE.strip()}"]
            program.run(member, command, now=lambda: self.seconds, sleep=self._sleep, end=self._end)
            self.starts = len((folder / "starts").read_text())

    def _sleep(self, duration_s: float) -> None:
        self.seconds += duration_s
        time.sleep(0.002)

    def _end(self, member: Any, reason: str) -> None:
        self.reasons.append(reason)


def test_the_first_machine_ends_the_group_when_the_stage_is_done_or_cannot_succeed(program: ModuleType) -> None:
    assert Run(program, 0, [0]).reasons == ["done"]
    assert Run(program, 0, [70]).reasons == ["exit code 70"]


def test_another_machine_leaves_that_to_the_first_and_ends_a_failed_group_after_a_while(program: ModuleType) -> None:
    failed = Run(program, 1, [2])
    assert failed.reasons == ["exit code 2"] and failed.seconds >= program.PATIENCE_S
    # The first machine is gone for good: time ends the group.
    done = Run(program, 1, [0], deadline_s=4000)
    assert done.reasons == ["its time is over"] and done.starts > 1


def test_a_crash_loop_ends_the_group_and_a_stage_that_asks_for_another_start_gets_it(program: ModuleType) -> None:
    assert Run(program, 0, [139]).reasons == ["ended 5 times in a row, the last time with exit code 139"]
    # One that asked for another start is no crash.
    assert Run(program, 0, [139, 139, 75] * 5 + [0]).reasons == ["done"]


def test_the_group_is_resized_to_0_with_the_machines_own_token(program: ModuleType, google: list[str]) -> None:
    member = program.read_member()
    assert (member.index, member.zone, member.deadline) == (1, "us-central1-a", 4102444800)
    assert member.environment == {
        "NCCL_DEBUG": "INFO",
        "SHARDLINE_JOB_ID": "photos-train-4102444800",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "photos-train-0",
        "PET_MASTER_PORT": "29500",
    }
    program.end_group(member, "done")
    place = "/compute/v1/projects/acme/zones/us-central1-a/instanceGroupManagers/photos-train"
    assert google == [f"{place}/resize?size=0"]


def test_a_preempted_machine_stops_the_stage_and_leaves_the_group(
    google: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container is a script that ends with 75, as a stage does that has saved."""
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\ntrap "exit 75" TERM\nenv > {tmp_path}/started\necho "$@" >> {tmp_path}/started\n'
        "while :; do sleep 0.05; done\n"
    )
    docker.chmod(0o755)
    gcloud = tmp_path / "gcloud"
    gcloud.write_text("#!/bin/sh\n")
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    machine = subprocess.Popen([sys.executable, str(PROGRAM)], stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists() or "photos-train-0" not in (tmp_path / "started").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        machine.send_signal(signal.SIGTERM)
        printed, _ = machine.communicate(timeout=30)
        assert b"exit code 75" in printed and google == []
    finally:
        machine.kill()
        machine.communicate()
