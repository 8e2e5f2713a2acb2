"""A bucket on this machine: Google Cloud Storage's JSON API over a directory.

    with BucketServer(root, buckets=["b"]) as server: ...

In a rehearsal clients reach it unmodified as storage.googleapis.com (rehearsal.guard). In tests an open server is
reached with `STORAGE_EMULATOR_HOST` (`BucketServer.environment` has what child processes need). One concept a file:

    service        one request from the operation to its entry in the access log
    server         the service behind a port of its own (rehearsal.doors.http_server has the sockets)
    messages       errors and bodies
    api            which operation a URL names
    uploads        simple, multipart (related) and resumable uploads
    objects        the objects: generations, preconditions, list
    index          which there are, in SQLite: the commit
    content        their bytes on disk, and the tree of plain files
    faults         what goes wrong, and what a request costs, by rule
    write_rate     one write per second to an object, in a rehearsal
    access_log     who asked for what

Who may call is checked by rehearsal.doors.access: requests bring its token, unless the server was made open, for tests.

Written with the standard library (http.server, sqlite3) and google-crc32c: nothing to install, readable to the end, and
its limits were measured (benchmarks in the commit that added it). It serves loopback only.

What it does not prove: permissions (there is no IAM, every caller may do everything), quotas and other rate limits that
were not set by a rule, latency and bandwidth of the real service, consistency between regions, encryption keys,
retention, soft delete, object versioning (only the live generation exists), notifications, lifecycle rules, signed
URLs, decompressive transcoding, gRPC, ETag preconditions. The XML API, batches, compose, copy, rewrite, move, patch and
update are answered with 501.
"""

from rehearsal.gcs.faults import Rule
from rehearsal.gcs.server import BucketServer
from rehearsal.gcs.service import BucketService

__all__ = ["BucketServer", "BucketService", "Rule"]
