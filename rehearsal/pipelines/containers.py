"""Containers of a pipeline's tasks: a process each, with its folders, and upload of its output files.

On Vertex AI, buckets are mounted below /gcs. Creating /gcs requires root, so output paths here are `FOLDER/BUCKET/...`
in the run's folder, and are uploaded to the bucket when the container has ended. Containers that write to hard-coded
/gcs/BUCKET/... paths are not supported.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rehearsal.jobs.threads import Place
from rehearsal.machines.machine import make_folders, tenant_identity
from rehearsal.machines.metadata import MetadataServer
from rehearsal.machines.processes import ProcessTree, clean_environment
from rehearsal.pipelines.job import Job, TaskPath
from rehearsal.pipelines.values import TaskFailed

# Vertex AI sends this mail; the container is only a marker.
_MAIL_MODULE = "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor"
_TAIL_LINES = 8
# Vertex AI sets it for GCPC's launchers, which copy these labels to the jobs that they start.
_LABELS_VARIABLE = "VERTEX_AI_PIPELINES_RUN_LABELS"
_MACHINE_TYPE = "e2-standard-4"
_UPLOAD_LIMIT_S = 60.0


def find_path(folder: Path, uri: str) -> Path:
    """Return the local path of a gs:// URI below a folder."""
    return folder / uri.removeprefix("gs://")


class Containers:
    """Runs the containers of one pipeline."""

    def __init__(self, job: Job, place: Place, log: Callable[[TaskPath, str], None]) -> None:
        self._job, self._place, self.log = job, place, log
        self.gcs_folder = place.folder / "gcs"
        """Replaces /gcs."""
        self._trees: set[ProcessTree] = set()
        self._lock, self._is_cancelled = threading.Lock(), False

    def with_paths(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `outputs` of an executor input with local paths in place of URIs."""
        parameters = {
            name: {"outputFile": str(find_path(self.gcs_folder, entry["outputFile"]))}
            for name, entry in outputs["parameters"].items()
        }
        output_file = str(find_path(self.gcs_folder, outputs["outputFile"]))
        return {**outputs, "parameters": parameters, "outputFile": output_file}

    def mail_recipients(self, container: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str] | None:
        """Return the recipients if a container is a mail task; else None."""
        arguments = [*container.get("command", []), *container.get("args", [])]
        return list(parameters["recipients"]) if any(_MAIL_MODULE in argument for argument in arguments) else None

    def run(self, path: TaskPath, command: list[str], env: Mapping[str, str]) -> None:
        """Run a task's container to its end and upload its files, also if it failed.

        Raises:
            TaskFailed: It ended with an error, or the upload failed.
        """
        root = self._job.task_root(path)
        # The real mount creates folders on write.
        find_path(self.gcs_folder, root).mkdir(parents=True, exist_ok=True)
        folders = make_folders(self._place.folder / "tasks" / "/".join(path))
        tail: deque[str] = deque(maxlen=_TAIL_LINES)

        def on_line(line: str) -> None:
            tail.append(line)
            self.log(path, line)

        # Like custom jobs, tasks run in a tenant project.
        number, location, account = self._job.project_number, self._job.location, self._job.service_account
        identity = tenant_identity(number, location, _MACHINE_TYPE, account, self._place.token)
        metadata = MetadataServer(f"task-{self._job.task_id(path)}", identity, self._place.on_refused)
        places = {"HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"])}
        variables = {
            _LABELS_VARIABLE: json.dumps(self._job.labels),
            "CLOUD_ML_PROJECT_ID": number,
            "CLOUD_ML_JOB_ID": str(self._job.task_id(path)),
        }
        environment = clean_environment(self._place.environment, metadata.environment, places, variables, env)
        try:
            with self._lock:
                if self._is_cancelled:
                    raise TaskFailed("the run was cancelled")
                tree = ProcessTree(command, environment=environment, folder=folders["work"], on_line=on_line)
                self._trees.add(tree)
            code = tree.wait()
            assert code is not None, "it has no limit"
        finally:
            metadata.close()
        with self._lock:
            self._trees.discard(tree)
            is_cancelled = self._is_cancelled
        if not is_cancelled:
            self._send(root)
        if code != 0:
            code = 128 - code if code < 0 else code
            raise TaskFailed("\n".join([f"the task's container ended with exit code {code}", *tail]))

    def cancel(self, grace_s: float) -> None:
        """Send SIGTERM to running containers, kill them after `grace_s`, and start no others."""
        with self._lock:
            self._is_cancelled = True
            trees = list(self._trees)
        stops = [threading.Thread(target=tree.stop, args=(grace_s,)) for tree in trees]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()

    def _send(self, root: str) -> None:
        """Upload the files written below a gs:// folder."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        bucket = root.removeprefix("gs://").partition("/")[0]
        folder = self.gcs_folder / bucket
        files = [path for path in sorted(find_path(self.gcs_folder, root).rglob("*")) if path.is_file()]
        if not files:
            return
        client = self._make_client()
        try:
            for path in files:
                blob = client.bucket(bucket).blob(path.relative_to(folder).as_posix())
                blob.upload_from_filename(path, timeout=_UPLOAD_LIMIT_S)
        except (GoogleAPIError, GoogleAuthError, OSError) as error:
            raise TaskFailed(f"the upload of the task's files failed: {error}") from None
        finally:
            client.close()

    def _make_client(self) -> Any:
        """Return a Cloud Storage client of the bucket server that ignores this process's environment variables."""
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud import storage
        from google.oauth2.credentials import Credentials

        credentials = Credentials(self._place.token())  # type: ignore[no-untyped-call]
        session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        session.trust_env = False
        session.proxies = {"https": self._place.environment["https_proxy"]}
        session.verify = self._place.environment["REQUESTS_CA_BUNDLE"]
        return storage.Client(
            project=self._job.project,
            credentials=credentials,
            _http=session,
            client_options={"api_endpoint": "https://storage.googleapis.com"},
        )
