"""A task's container, as a process: its placeholders, its folders, its files to and from the bucket."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
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
from rehearsal.machines.mount import MOUNT_VARIABLE, Mount
from rehearsal.machines.network import Network
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.placeholders import Values, expand_words, substitute
from rehearsal.pipelines.reports import Path as TaskPath
from rehearsal.pipelines.reports import Reporter, custom_job_id, task_id
from rehearsal.pipelines.values import TaskFailed

# Vertex sends this mail itself; the container only says that it must run there.
_MAIL_MODULE = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
# Python components see their inputs as files, whether or not their command names a path.
_SEES_INPUTS = ("kfp.dsl.executor_main",)
_TAIL_LINES = 8
# Vertex sets it for GCPC's launchers, which put these labels on what they start.
_LABELS_VARIABLE = "VERTEX_AI_PIPELINES_RUN_LABELS"


@dataclass(frozen=True)
class ContainerTask:
    """One attempt of a task that runs a container."""

    path: TaskPath
    image: str
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
        self._environment[MOUNT_VARIABLE] = str(self.mount.folder)
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

    def values(
        self, path: TaskPath, executor_input: Mapping[str, Any], optional: frozenset[str] = frozenset()
    ) -> Values:
        """Return what the placeholders of a task stand for."""
        number = str(task_id(self.job.uuid, path))
        constants = {**self.job.constants(), "pipeline_task_name": path[-1], "pipeline_task_uuid": number}
        return Values(executor_input, constants, self.mount.path_of, optional)

    def run(self, task: ContainerTask, attempt: int) -> None:
        """Run a task's container to its end; what it wrote is in the bucket then, also when it failed.

        Args:
            task: The task.
            attempt: Number of this attempt at it, from 1.

        Raises:
            TaskFailed: It ended with an error, or its image, its inputs or its placeholders are not there.
        """
        self.note_running(task.path, attempt)
        executor_input = self.output_files(task.executor_input)
        if any(_MAIL_MODULE in word for word in task.words):
            inputs = executor_input["inputs"]["parameterValues"]
            status = inputs.get("pipeline_task_final_status", {})
            self._reporter.mail(task.path, inputs.get("recipients", []), status)
            return
        provided = {name for side in executor_input["inputs"].values() for name in side}
        values = self.values(task.path, executor_input, task.optional)
        words = [substitute(word, values) for word in expand_words(task.words, provided)]
        env = {name: substitute(value, values) for name, value in task.env.items()}
        root = self.task_root(task.path)
        try:
            self._fetch_inputs(task, executor_input)
            # The mount makes folders of whatever is written below them.
            Path(self.mount.path_of(root)).mkdir(parents=True, exist_ok=True)
            env = {"CLOUD_ML_JOB_ID": str(custom_job_id(task_id(self.job.uuid, task.path), attempt)), **env}
            code, tail = self._execute(task.path, f"{attempt}", words, env)
            self._send_outputs(root, executor_input)
        except ShardlineError as error:
            raise TaskFailed(f"the bucket of the task's files does not answer as it should: {error}") from None
        if code != 0:
            raise TaskFailed("\n".join([f"the task's container ended with exit code {code}", *tail]))

    def note_running(self, path: TaskPath, attempt: int) -> None:
        """Report that a task runs; what was cancelled does not begin."""
        if self.cancelled.is_set():
            raise TaskFailed("the run was cancelled")
        self._reporter.task(path, "RUNNING", attempt=attempt)

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

    def _fetch_inputs(self, task: ContainerTask, executor_input: Mapping[str, Any]) -> None:
        text = "\0".join([*task.words, *task.env.values()])
        everything = any(module in text for module in _SEES_INPUTS)
        for name, entry in executor_input.get("inputs", {}).get("artifacts", {}).items():
            if everything or f"inputs.artifacts['{name}'].path" in text:
                for artifact in entry.get("artifacts", []):
                    self.mount.fetch(artifact.get("uri", ""))

    def _send_outputs(self, root: str, executor_input: Mapping[str, Any]) -> None:
        """Copy what a container wrote to the bucket: below its root, and artifacts that it put elsewhere."""
        for artifact in read_artifacts(Path(executor_input["outputs"]["outputFile"])):
            if not artifact.get("uri"):
                continue  # it stays where it was to be: below the root
            uri, custom = self.mount.uri_of(artifact.get("uri", "")), artifact.get("custom_path", "")
            if custom and Path(custom).exists():
                # As kfp's launcher: the content of an artifact with a path of its own goes to the artifact's URI.
                target = Path(self.mount.path_of(uri))
                target.parent.mkdir(parents=True, exist_ok=True)
                if Path(custom).is_dir():
                    shutil.copytree(custom, target, dirs_exist_ok=True)
                else:
                    shutil.copyfile(custom, target)
            if not uri.startswith(f"{root}/"):
                self.mount.send(uri)
        self.mount.send(root)

    def _identity(self) -> Identity:
        # A task runs as a custom job does: in a tenant project.
        return tenant_identity(
            self.job.project_number, self.job.location, "e2-standard-4", self.job.service_account, lambda: self._token
        )

    def _execute(
        self,
        path: TaskPath,
        attempt: str,
        command: list[str],
        env: Mapping[str, str],
    ) -> tuple[int, list[str]]:
        """Run a container; return its exit code and its last lines."""
        place = self._folder / "tasks" / "/".join((*path, attempt))
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


def read_artifacts(path: Path) -> list[dict[str, Any]]:
    """Return the artifacts that the output file of a container names; none where it wrote none, or no JSON."""
    with contextlib.suppress(OSError, ValueError):
        groups = json.loads(path.read_text()).get("artifacts", {}).values()
        return [artifact for group in groups for artifact in group.get("artifacts", [])]
    return []
