"""A task's container, as a process: its placeholders, its folders, its files to the bucket."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ShardlineError
from rehearsal.machines.commands import with_commands, write_commands
from rehearsal.machines.machine import tenant_identity
from rehearsal.machines.metadata import Identity
from rehearsal.machines.mount import Mount
from rehearsal.machines.network import Network
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.placeholders import Values, substitute
from rehearsal.pipelines.reports import Path as TaskPath
from rehearsal.pipelines.reports import Reporter, task_id
from rehearsal.pipelines.values import TaskFailed

# Vertex sends this mail itself; the container only says that it must run there.
_MAIL_MODULE = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
_TAIL_LINES = 8
# Vertex sets it for GCPC's launchers, which put these labels on what they start.
_LABELS_VARIABLE = "VERTEX_AI_PIPELINES_RUN_LABELS"


@dataclass(frozen=True)
class ContainerTask:
    """A task that runs a container."""

    path: TaskPath
    words: list[str]
    """Command and arguments, as in the specification."""
    env: Mapping[str, str]
    executor_input: dict[str, Any]
    """As JSON; output files are gs:// URIs still."""
    optional: frozenset[str] = frozenset()
    """Input parameters that the component declares optional."""


class Containers:
    """Runs the containers of one pipeline.

    Args:
        job: The pipeline.
        folder: For everything that is written on this machine.
        environment: What each container gets beside its own variables.
        reporter: Told what they print.
        network: That the containers' machines are on.
        token: Of their clients.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        environment: Mapping[str, str],
        reporter: Reporter,
        network: Network,
        token: str,
    ) -> None:
        self.job, self.mount = job, Mount(folder / "gcs")
        self._folder, self._reporter = folder, reporter
        self._environment = with_commands(clean_environment(environment), write_commands(folder / "bin"))
        self._environment[_LABELS_VARIABLE] = json.dumps(job.labels)
        self._network, self._token = network, token
        self._names = itertools.count()
        self._trees: set[ProcessTree] = set()
        self._lock = threading.Lock()
        self.cancelled = threading.Event()

    def task_root(self, path: TaskPath) -> str:
        """Return the gs:// folder of a task's outputs, as Vertex lays them out."""
        number = task_id(self.job.uuid, path)
        return f"{self.job.pipeline_root.rstrip('/')}/{self.job.project_number}/{self.job.id}/{path[-1]}_{number}"

    def run(self, task: ContainerTask) -> None:
        """Run a task's container to its end; what it wrote is in the bucket then, also when it failed.

        Raises:
            TaskFailed: It ended with an error, or its placeholders stand for nothing.
        """
        self.note_running(task.path)
        executor_input = self.output_files(task.executor_input)
        if any(_MAIL_MODULE in word for word in task.words):
            inputs = executor_input["inputs"]["parameterValues"]
            state = inputs.get("pipeline_task_final_status", {}).get("state", "")
            self._reporter.log(task.path, f"mail to {', '.join(inputs['recipients'])}: the run {state}")
            return
        values = Values(executor_input, self.job.constants(), task.optional)
        words = [substitute(word, values) for word in task.words]
        env = {name: substitute(value, values) for name, value in task.env.items()}
        root = self.task_root(task.path)
        try:
            # The mount makes folders of whatever is written below them.
            Path(self.mount.path_of(root)).mkdir(parents=True, exist_ok=True)
            env = {"CLOUD_ML_JOB_ID": str(task_id(self.job.uuid, task.path)), **env}
            code, tail = self._execute(task.path, words, env)
            self.mount.send(root)
        except ShardlineError as error:
            raise TaskFailed(f"the bucket of the task's files does not answer as it should: {error}") from None
        if code != 0:
            raise TaskFailed("\n".join([f"the task's container ended with exit code {code}", *tail]))

    def note_running(self, path: TaskPath) -> None:
        """Report that a task runs; what was cancelled does not begin."""
        if self.cancelled.is_set():
            raise TaskFailed("the run was cancelled")
        self._reporter.task(path, "RUNNING")

    def cancel(self) -> None:
        """Send SIGTERM to what runs; nothing is started any more."""
        self.cancelled.set()
        with self._lock:
            running = list(self._trees)
        for tree in running:
            tree.send(signal.SIGTERM)

    def output_files(self, executor_input: dict[str, Any]) -> dict[str, Any]:
        """Return an executor input whose output files are paths that a container can write."""
        outputs = executor_input.get("outputs")
        if outputs is None:
            return executor_input
        parameters = {
            name: {"outputFile": self.mount.path_of(entry["outputFile"])}
            for name, entry in outputs["parameters"].items()
        }
        written = {"parameters": parameters, "outputFile": self.mount.path_of(outputs["outputFile"])}
        return {**executor_input, "outputs": {**outputs, **written}}

    def _identity(self) -> Identity:
        # A task runs as a custom job does: in a tenant project.
        return tenant_identity(
            self.job.project_number, self.job.location, "e2-standard-4", self.job.service_account, lambda: self._token
        )

    def _execute(self, path: TaskPath, command: list[str], env: Mapping[str, str]) -> tuple[int, list[str]]:
        """Run a container; return its exit code and its last lines."""
        place = self._folder / "tasks" / "/".join(path)
        folders = {name: place / name for name in ("home", "tmp", "work")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        tail: deque[str] = deque(maxlen=_TAIL_LINES)

        def hear(line: str) -> None:
            tail.append(line)
            self._reporter.log(path, line)

        environment = {
            **self._environment,
            "HOME": str(folders["home"]),
            "TMPDIR": str(folders["tmp"]),
            "CLOUD_ML_PROJECT_ID": self.job.project_number,
            **env,
        }
        with self._lock:
            if self.cancelled.is_set():
                raise TaskFailed("the run was cancelled")
            host = self._network.add(f"task-{self.job.uuid[-12:]}-{next(self._names)}", self._identity())
            tree = host.start(command, environment=environment, folder=folders["work"], on_line=hear)
            self._trees.add(tree)
        try:
            code = tree.wait()
            assert code is not None, "it has no limit"
        finally:
            host.close()
            with self._lock:
                self._trees.discard(tree)
        return (128 - code if code < 0 else code), list(tail)
