"""/gcs without root: on Vertex a container sees each bucket as a folder below /gcs, a path that kfp hard-codes.

Nobody but root can make /gcs, and a mount is not the same on all systems. So a container is given other paths in its
place: a task's `{{$...path}}`, output files and executor input name `MOUNT/BUCKET/...` below the run's own folder. What
a task can see of its inputs is copied there before it starts, what it has written goes to gs:// through the bucket's
API when it has ended, as through the real mount. kfp's own executor of Python components, in which the prefix is a
constant, is started by rehearsal/pipelines/kfp_executor.py, which sets it.

Not played: a container that names /gcs/BUCKET/... by itself, not from a placeholder, finds nothing there; files are
seen in the bucket when the task ends, not when they are closed.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from contracts import storage

GCS_PREFIX = "gs://"
MOUNT_PREFIX = "/gcs/"
# Read by kfp_executor.
MOUNT_VARIABLE = "SHARDLINE_REHEARSAL_GCS"
# A file up to this size is one request, a larger one is copied in pieces of it.
_WHOLE_BYTES = 8 << 20


class Mount:
    """A folder that stands for /gcs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copied: dict[Path, tuple[int, int]] = {}

    def path_of(self, uri: str) -> str:
        """Return the path at which a container sees a gs:// URI; any other URI is its own path, as for kfp."""
        return str(self.folder / uri.removeprefix(GCS_PREFIX)) if uri.startswith(GCS_PREFIX) else uri

    def uri_of(self, path: str) -> str:
        """Return the gs:// URI of a path below the mount, or below /gcs; another path is returned as it is."""
        for prefix in (f"{self.folder}/", MOUNT_PREFIX):
            if path.startswith(prefix):
                return GCS_PREFIX + path.removeprefix(prefix)
        return path

    def fetch(self, uri: str) -> None:
        """Copy an object, or a folder with all below it, to where a container sees it; nothing if it is not there."""
        if not uri.startswith(GCS_PREFIX):
            return
        path = Path(self.path_of(uri))
        try:
            self._write(path, uri)
        except FileNotFoundError:
            for entry in storage.list_objects(uri):
                self._write(path / entry.name, storage.join(uri, entry.name))

    def send(self, uri: str) -> None:
        """Copy a file, or what was written below a folder, to the bucket, where it has changed."""
        folder = Path(self.path_of(uri))
        paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        for path in paths:
            state = path.stat()
            version = (state.st_size, state.st_mtime_ns)
            if self._copied.get(path) == version:
                continue
            to = self.uri_of(str(path))
            if state.st_size <= _WHOLE_BYTES:
                storage.replace(to, path.read_bytes())
            else:
                # Streams are create-only; what is there is of an earlier attempt.
                storage.delete(to)
                with path.open("rb") as stream:
                    storage.publish_stream(to, stream, state.st_size)
            self._copied[path] = version

    def _write(self, path: Path, uri: str) -> None:
        """Copy an object in pieces; another task may read the file meanwhile."""
        with storage.open_read(uri) as source:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            with new.open("wb") as target:
                shutil.copyfileobj(source, target, _WHOLE_BYTES)
            new.replace(path)
