"""Local bucket server: Google Cloud Storage's JSON API over a directory.

    with BucketServer(root, buckets=["b"]) as server: ...

In a rehearsal, unmodified clients reach it as storage.googleapis.com. Tests reach an open server with
`STORAGE_EMULATOR_HOST` (`BucketServer.environment` has the variables for child processes).

Supported: buckets.list, insert, get, delete; objects.list, get, media (ranges), delete; simple, multipart and resumable
uploads; generations, preconditions, checksums, partial responses, and one write per second to an object. Other methods
(the XML API, batches, compose, copy, rewrite, move, patch, update, versions) are answered with 501.

Not simulated: permissions (there is no IAM), quotas and rate limits without a rule, latency and bandwidth of the real
service, encryption keys, retention, soft delete, versioning, notifications, lifecycle rules, signed URLs, transcoding,
gRPC, ETag preconditions.
"""

from rehearsal.gcs.faults import Rule
from rehearsal.gcs.server import BucketServer, BucketService

__all__ = ["BucketServer", "BucketService", "Rule"]
