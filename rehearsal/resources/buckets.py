"""Cloud Storage as Vertex AI sees it: whether a bucket is there, and whether a folder holds objects."""

from __future__ import annotations

from rehearsal.gcs.messages import ApiError
from rehearsal.gcs.service import BucketService


class Buckets:
    """The buckets of a rehearsal; None: nobody says which there are."""

    def __init__(self, service: BucketService | None = None) -> None:
        self._service = service

    def has(self, uri: str) -> bool:
        """Whether the bucket of a gs:// URI is there; True where nobody says that it is not."""
        if self._service is None:
            return True
        try:
            self._service.objects.bucket(uri.removeprefix("gs://").split("/")[0])
        except ApiError:
            return False
        return True

    def has_objects(self, uri: str) -> bool:
        """Whether a gs:// folder holds an object; True where nobody says that it does not."""
        if self._service is None:
            return True
        bucket, _, folder = uri.removeprefix("gs://").partition("/")
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        rows = self._service.objects.rows(bucket, prefix, "", 1)
        return bool(rows) and rows[0].name.startswith(prefix)
