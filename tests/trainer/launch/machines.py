"""Machines for tests: a launcher each, in a network namespace of its own where that is permitted, else on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest
from contracts.config import STAGE_KEYS
from contracts.errors import DataError
from contracts.events import ATTEMPTS_FOLDER, EVENTS_NAME, EventReader
from trainer.checkpoint import CHECKPOINTS_FOLDER
from trainer.launch import Assignment

# For a machine that is slow and busy; nothing waits so long unless it hangs.
LIMIT_S = 240
RANK = b"\0-m\0trainer.worker\0"


class Network:
    """Machines 0, 1, ... as Vertex AI names them, able to reach each other by these names."""

    def __init__(self, port: int, nodes: int) -> None:
        self.port, self.nodes = port, nodes
        self.prefixes: list[list[str]] = [[] for _ in range(nodes)]
        self.hosts = ["localhost"] * nodes
        self.hub = ""

    def connect(self, node: int, state: str) -> None:
        """Put a machine's cable out (`down`) or in (`up`); in namespaces only."""
        _ip("-n", self.hub, "link", "set", f"node{node}", state)

    def environment(self, node: int) -> dict[str, str]:
        """What Vertex AI sets on a machine: CLUSTER_SPEC, and ranks of machines that must not reach torchrun."""
        pools = {"workerpool0": [f"{self.hosts[0]}:2222"], "workerpool1": [f"{host}:2222" for host in self.hosts[1:]]}
        task = {"type": "workerpool1", "index": node - 1} if node else {"type": "workerpool0", "index": 0}
        spec = {"cluster": pools, "environment": "cloud", "task": task, "job": "{}"}
        leak = {"RANK": str(node), "WORLD_SIZE": str(self.nodes), "MASTER_ADDR": self.hosts[0], "MASTER_PORT": "2222"}
        return {"CLUSTER_SPEC": json.dumps(spec), **leak}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


def namespaces_are_permitted() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"shardline-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=30, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


@contextmanager
def network(port: int, nodes: int) -> Iterator[Network]:
    """Make machines that reach each other; namespaces on a bridge, or loopback."""
    made = Network(port, nodes)
    if not namespaces_are_permitted():
        yield made
        return
    job = uuid.uuid4().hex[:6]
    hub = made.hub = f"shl-{job}-hub"
    names = [f"shl-{job}-{node}" for node in range(nodes)]
    made.hosts = [f"cmle-training-workerpool{min(node, 1)}-{job}-{max(node - 1, 0)}" for node in range(nodes)]
    etc = [Path("/etc/netns") / name for name in names]
    try:
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for node, name in enumerate(names):
            _ip("netns", "add", name)
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"node{node}", "netns", hub)
            _ip("-n", hub, "link", "set", f"node{node}", "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"10.77.0.{node + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            etc[node].mkdir(parents=True)
            lines = ["127.0.0.1 localhost", *(f"10.77.0.{other + 1} {host}" for other, host in enumerate(made.hosts))]
            (etc[node] / "hosts").write_text("\n".join(lines) + "\n")
            made.prefixes[node] = ["ip", "netns", "exec", name]
        yield made
    finally:
        for name in [*names, hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)
        for folder in etc:
            shutil.rmtree(folder, ignore_errors=True)


# What each stage that runs on several machines is started by.
MODULES = {"train": "trainer.task", "profile": "trainer.profiling.task"}


class Machine:
    """One launcher: started, killed and started again, as a platform does."""

    def __init__(
        self,
        root: Path,
        shards: str,
        config: dict[str, Any],
        *,
        node: int = 0,
        net: Network | None = None,
        output: str | None = None,
        stage: str = "train",
    ) -> None:
        self.root, self.shards, self.node, self.net = root, shards, node, net
        self._module = MODULES[stage]
        self.output = output
        self.printed = ""
        sections = {name: config[name] for name in STAGE_KEYS[stage] if name in config}
        if net is not None:
            sections["resources"] = {"port": net.port, **sections.get("resources", {})}
        self._sections = sections
        self._process: subprocess.Popen[str] | None = None
        self.attempts: list[str] = []

    def start(self, *more: str, environment: dict[str, str] | None = None) -> None:
        """Start the launcher, in a new attempt."""
        self.attempts.append(f"machine{self.node}-{len(self.attempts)}")
        events = self.root / ATTEMPTS_FOLDER / self.attempts[-1]
        output = [f"--root={self.root}"] if self.output is None else [f"--output={self.output}", f"--events={events}"]
        options = [*output, "--shards", self.shards, "--attempt", self.attempts[-1]]
        config = json.dumps(self._sections)
        prefix, given = [], {}
        if self.net is not None:
            # A core each: else each launcher takes this machine's for its own, and the other's.
            core = sorted(os.sched_getaffinity(0))[self.node % len(os.sched_getaffinity(0))]
            prefix = ["taskset", "-c", str(core), *self.net.prefixes[self.node]]
            given = self.net.environment(self.node)
        folder = self.root / "stderr"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / self.attempts[-1]).open("wb") as stderr:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", self._module, *options, "--config-json", config, *more],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **given, **(environment or {})},
                text=True,
            )

    def config(self, resources: dict[str, Any], **sections: dict[str, Any]) -> None:
        """Change the configuration of attempts that start from now on."""
        for name, changes in {"resources": resources, **sections}.items():
            self._sections[name] = {**self._sections.get(name, {}), **changes}

    @property
    def process(self) -> subprocess.Popen[str]:
        """The launcher that was started last."""
        assert self._process is not None
        return self._process

    def wait(self) -> int:
        """Wait for the launcher's end; return its exit code."""
        self.printed = self.process.communicate(timeout=LIMIT_S)[0]
        return self.process.returncode

    def stderr(self) -> str:
        """What the last attempt said on stderr."""
        return (self.root / "stderr" / self.attempts[-1]).read_text(errors="replace")

    def kill(self) -> None:
        """Kill the launcher as a machine that goes away does, and wait until its ranks are gone."""
        family = list(descendants(self.process.pid))
        self.process.kill()
        self.process.communicate()
        deadline = time.monotonic() + LIMIT_S
        while any(Path(f"/proc/{pid}").exists() for pid in family):
            assert time.monotonic() < deadline, "ranks outlive their launcher"
            time.sleep(0.05)

    def end(self) -> None:
        """Let nothing remain after a test."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def events(self) -> list[dict[str, Any]]:
        """Events of the last attempt."""
        return list(EventReader(self.root / ATTEMPTS_FOLDER / self.attempts[-1] / EVENTS_NAME).poll())

    def logs(self) -> str:
        """Messages of the last attempt."""
        return "\n".join(event["message"] for event in self.events() if event["event"] == "log")

    def num_starts(self) -> int:
        """How often the first rank has come to its first step, in the last attempt."""
        return sum(event["event"] == "ready" for event in self.events())

    def wait_for(self, done: Any) -> None:
        """Wait until a condition holds, while the launcher lives."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert self.process.poll() is None, self.stderr()
            assert time.monotonic() < deadline, self.stderr()
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        """Wait until an optimizer step is reached."""
        self.wait_for(lambda: self.newest_step() >= step)

    def newest_step(self) -> int:
        """The newest step that was told about in the last attempt."""
        return max((event["done"] for event in self.events() if event["event"] == "progress"), default=0)

    def ranks(self) -> list[int]:
        """Process ids of the ranks that live."""
        found = []
        for pid in descendants(self.process.pid):
            try:
                if RANK in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found


def make_assignment(attempt_folder: Path, **changes: Any) -> Assignment:
    """The assignment of a training that two ranks only pretend."""
    values = {"config": {}, "shards": "file:///shards", "profile": None, "folder": "file:///training"}
    values |= {"fingerprint": "f", "made_from": {}, "attempt": "a", "attempt_folder": str(attempt_folder)}
    return Assignment.model_validate({**values, "ranks": 2, "threads": 1, **changes})


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in children:
        yield int(line)
        yield from descendants(int(line))


def kill(pids: Sequence[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def committed(output: str) -> dict[str, CheckpointManifest]:
    """Return the committed checkpoints of a training folder by name, oldest first."""
    folder = storage.join(output, CHECKPOINTS_FOLDER)
    names = [entry.name.rpartition("/")[0] for entry in storage.list_objects(folder) if _is_commit(entry.name)]
    manifests = {}
    for name in sorted(names):
        # A training that goes on deletes old ones.
        with suppress(DataError):
            manifests[name] = CheckpointManifest.load(storage.join(folder, name))
    return manifests


def _is_commit(name: str) -> bool:
    return name.startswith("step-") and name.endswith(f"/{MANIFEST_NAME}")
