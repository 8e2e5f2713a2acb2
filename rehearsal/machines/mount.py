"""/gcs without root: on Vertex a container sees each bucket as a folder below /gcs, a path that kfp hard-codes.

Nobody but root can make /gcs, and a mount is not the same on all systems. So a container is given other paths in its
place: its output files are `MOUNT/BUCKET/...` below the run's own folder. What it has written goes to gs:// through the
bucket's API when it has ended.

Not played: a container that names /gcs/BUCKET/... by itself finds nothing there; files are seen in the bucket when the
task ends, not when they are closed.
"""

from __future__ import annotations

from pathlib import Path

from contracts import storage

GCS_PREFIX = "gs://"


class Mount:
    """A folder that stands for /gcs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, uri: str) -> str:
        """Return the path at which a container sees a gs:// URI."""
        return str(self.folder / uri.removeprefix(GCS_PREFIX))

    def send(self, uri: str) -> None:
        """Copy what was written below a folder to the bucket."""
        for path in sorted(Path(self.path_of(uri)).rglob("*")):
            if path.is_file():
                storage.replace(f"{GCS_PREFIX}{path.relative_to(self.folder)}", path.read_bytes())
