"""A bucket on this machine: Google Cloud Storage's JSON API over a directory.

    with BucketServer(root, buckets=["b"]) as server: ...

In a rehearsal clients reach it unmodified as storage.googleapis.com. In tests an open server is reached with
`STORAGE_EMULATOR_HOST` (`BucketServer.environment` has what child processes need).

Served: buckets.list, insert, get, delete; objects.list, get, media (ranges), delete; simple, multipart and resumable
uploads; generations, preconditions, checksums, partial responses, and one write per second to an object. Everything
else (the XML API, batches, compose, copy, rewrite, move, patch, update, versions) is answered with 501.

Not proven by it: permissions (there is no IAM), quotas and rate limits that no rule sets, latency and bandwidth of the
real service, encryption keys, retention, soft delete, versioning, notifications, lifecycle rules, signed URLs,
transcoding, gRPC, ETag preconditions.
"""

from rehearsal.gcs.faults import Rule
from rehearsal.gcs.server import BucketServer, BucketService

__all__ = ["BucketServer", "BucketService", "Rule"]
