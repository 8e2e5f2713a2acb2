"""A task's container, as a process: its placeholders, its folders, its files to and from the bucket."""

from __future__ import annotations

import json
import signal
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.canonical import canonical
from contracts.errors import ShardlineError
from rehearsal.machines.mount import MOUNT_VARIABLE, Mount, with_python, write_python
from rehearsal.machines.processes import MEMORY_VARIABLE, Tree, clean_environment
from rehearsal.pipelines.job import Job
from rehearsal.pipelines.placeholders import Values, expand_words, substitute, substitute_all
from rehearsal.pipelines.reports import Path as TaskPath
from rehearsal.pipelines.reports import Reporter, task_id

# Vertex sends this mail itself; the container only says that it must run there.
_MAIL_MODULE = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
# Python components see their inputs as files, whether or not their command names a path.
_SEES_INPUTS = ("kfp.dsl.executor_main",)
_TAIL_LINES = 8
# Vertex sets it for GCPC's launchers, which put these labels on what they start.
_LABELS_VARIABLE = "VERTEX_AI_PIPELINES_RUN_LABELS"


class TaskFailed(Exception):
    """A task's container ended with an error, or could not be run; the message is for the user."""


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
    live: frozenset[str]
    """Input parameters whose values come from the specification, so that placeholders in them are meant."""
    optional: frozenset[str] = frozenset()
    """Input parameters that the component declares optional."""


class Containers:
    """Runs the containers of one pipeline.

    Args:
        job: The pipeline.
        folder: For everything that is written on this machine.
        environment: What each container gets beside its own variables.
        reporter: Told what they print.
        missing_images: Images that cannot be pulled.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        environment: Mapping[str, str],
        reporter: Reporter,
        missing_images: frozenset[str] = frozenset(),
    ) -> None:
        self.job, self.mount = job, Mount(folder / "gcs")
        self._folder, self._reporter, self._missing = folder, reporter, missing_images
        self._environment = with_python(clean_environment(environment), write_python(folder / "bin"))
        self._environment[MOUNT_VARIABLE] = str(self.mount.folder)
        self._environment[_LABELS_VARIABLE] = json.dumps(job.labels)
        self._trees: set[Tree] = set()
        self._lock = threading.Lock()
        self._attempts: dict[TaskPath, int] = {}
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

    def run(self, task: ContainerTask) -> None:
        """Run a task's container to its end; what it wrote is in the bucket then, also when it failed.

        Raises:
            TaskFailed: It ended with an error, or its image, its inputs or its placeholders are not there.
        """
        attempt = self._attempts[task.path] = self._attempts.get(task.path, 0) + 1
        self._reporter.task(task.path, "RUNNING", attempt=attempt)
        if task.image in self._missing:
            raise TaskFailed(f"image {task.image} was not found, or may not be pulled")
        executor_input = self._resolve_inputs(task)
        if any(_MAIL_MODULE in word for word in task.words):
            inputs = executor_input["inputs"]["parameterValues"]
            status = inputs.get("pipeline_task_final_status", {})
            self._reporter.mail(task.path, inputs.get("recipients", []), status)
            return
        provided = {
            name for side in executor_input.get("inputs", {}).values() for name in side if side[name] is not None
        }
        values = self.values(task.path, executor_input, task.optional)
        words = [substitute(word, values) for word in expand_words(task.words, provided)]
        env = {name: substitute(value, values) for name, value in task.env.items()}
        root = self.task_root(task.path)
        try:
            self._fetch_inputs(task, executor_input)
            # The mount makes folders of whatever is written below them.
            Path(self.mount.path_of(root)).mkdir(parents=True, exist_ok=True)
            code, tail = self._execute(task.path, attempt, words, env)
            self.mount.send(root)
        except ShardlineError as error:
            raise TaskFailed(f"the bucket of the task's files does not answer as it should: {error}") from None
        if code != 0:
            raise TaskFailed("\n".join([f"the task's container ended with exit code {code}", *tail]))

    def cancel(self) -> None:
        """Send SIGTERM to what runs; nothing is started any more."""
        self.cancelled.set()
        with self._lock:
            running = list(self._trees)
        for tree in running:
            tree.send(signal.SIGTERM)

    def output_files(self, executor_input: dict[str, Any]) -> dict[str, Any]:
        """Return an executor input whose output files are paths that a container can write."""
        outputs = executor_input.get("outputs", {})
        files = {"outputFile": self.mount.path_of(outputs["outputFile"])} if "outputFile" in outputs else {}
        parameters = {
            name: {**entry, "outputFile": self.mount.path_of(entry["outputFile"])}
            for name, entry in outputs.get("parameters", {}).items()
        }
        return {**executor_input, "outputs": {**outputs, **files, **({"parameters": parameters} if parameters else {})}}

    def _resolve_inputs(self, task: ContainerTask) -> dict[str, Any]:
        executor_input: dict[str, Any] = self.output_files(canonical(task.executor_input))
        values = self.values(task.path, executor_input, task.optional)
        given = executor_input.get("inputs", {}).get("parameterValues", {})
        resolved = {
            name: canonical(substitute_all(value, values)) if name in task.live else value
            for name, value in given.items()
        }
        return {**executor_input, "inputs": {**executor_input.get("inputs", {}), "parameterValues": resolved}}

    def _fetch_inputs(self, task: ContainerTask, executor_input: Mapping[str, Any]) -> None:
        text = "\0".join([*task.words, *task.env.values()])
        everything = any(module in text for module in _SEES_INPUTS)
        for name, entry in executor_input.get("inputs", {}).get("artifacts", {}).items():
            if everything or f"inputs.artifacts['{name}'].path" in text:
                for artifact in entry.get("artifacts", []):
                    self.mount.fetch(artifact.get("uri", ""))

    def _execute(
        self, path: TaskPath, attempt: int, command: list[str], env: Mapping[str, str]
    ) -> tuple[int, list[str]]:
        place = self._folder / "tasks" / "/".join((*path, str(attempt)))
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
            MEMORY_VARIABLE: str(folders["tmp"]),
            "CLOUD_ML_PROJECT_ID": self.job.project_number,
            **env,
        }
        with self._lock:
            if self.cancelled.is_set():
                raise TaskFailed("the run was cancelled")
            tree = Tree(command, environment=environment, folder=folders["work"], on_line=hear)
            self._trees.add(tree)
        try:
            code = tree.wait()
        finally:
            tree.kill()
            with self._lock:
                self._trees.discard(tree)
        assert code is not None
        return (128 - code if code < 0 else code), list(tail)
