"""`gs://`: Google Cloud Storage through google-cloud-storage (extra `gcp`).

Commits are create-only by ifGenerationMatch=0; after a lost response the object's checksum decides. Every call has a
timeout and the client's retry; an interrupted download is continued in the same generation. Content is read as stored,
regardless of Content-Encoding, as sizes and checksums require. Each process, also a forked one, creates its client on
first use, with credentials of the environment, or none if STORAGE_EMULATOR_HOST is set. contracts.storage documents the
functions.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import google_crc32c

from contracts.errors import StorageError, TryAgain
from contracts.stores import AlreadyPublished, ObjectInfo, ReadRequest, crc32c_of_stream

CONNECT_TIMEOUT_S = 10
# Between two bytes of an answer; a chunk of 16 MiB on a slow line still moves.
READ_TIMEOUT_S = 60
# Time limit for the retries of one call, with exponential backoff.
RETRY_DEADLINE_S = 60.0
# A chunk of a resumable upload and of a stream that is read: the memory that it takes. A multiple of 256 KiB.
CHUNK_BYTES = 16 << 20
# Bytes of a long range per call, since a call has one deadline for all attempts.
_CALL_BYTES = 64 << 20
# Piece size of a download; the client's default of 8 KiB takes four times the CPU time.
_PIECE_BYTES = 1 << 20
# Size of the connection pool per process.
_CONNECTIONS = 64
# Concurrent deletes, which are bound by latency.
_DELETE_THREADS = 16
# Attempts to read a content with a matching checksum.
_READ_ATTEMPTS = 3
_INFO_FIELDS = "items(name,size,generation,crc32c,md5Hash,updated),nextPageToken"
# Content types that a browser displays instead of downloading.
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}

# Bucket of the source, and project that pays for requests to it (cloud.billing_project); children inherit it.
BILLING_VARIABLE = "SHARDLINE_BILLING_PROJECT"
# Variables that decide which client it is.
_VARIABLES = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")

_lock = threading.Lock()
_client: tuple[int, tuple[str | None, ...], Any] | None = None
# Clients of the parent process, whose sockets a forked child must not close.
_inherited: list[Any] = []


def split(uri: str) -> tuple[str, str]:
    """Return bucket and object name of a URI; the name may be empty.

    Raises:
        StorageError: It is of another scheme, or names no bucket.
    """
    scheme, _, path = uri.partition("://")
    if scheme != "gs":
        raise StorageError(
            f"{uri}: storage scheme {scheme}:// is not available",
            allowed="a local path, file:// or gs://",
            todo="copy the data to a local directory or a bucket of Cloud Storage and give its path",
        )
    bucket, _, name = path.partition("/")
    if not bucket:
        raise StorageError(f"{uri} names no bucket", allowed="gs://BUCKET/PATH", todo="write the bucket's name")
    return bucket, name


def client() -> Any:
    """Return this process's client, made on the first call.

    Raises:
        StorageError: google-cloud-storage is not installed, or there are no credentials.
    """
    global _client
    key = (os.getpid(), tuple(os.environ.get(name) for name in _VARIABLES))
    with _lock:
        if _client is None or _client[:2] != key:
            if _client is not None and _client[0] != key[0]:
                _inherited.append(_client)
            elif _client is not None:
                _client[2].close()
            _client = (*key, _make_client(anonymous=bool(key[1][0])))
        return _client[2]


def close() -> None:
    """Close this process's client, if there is one; the next call makes another."""
    global _client
    with _lock:
        if _client is not None and _client[0] == os.getpid():
            _client[2].close()
            _client = None


def _make_client(*, anonymous: bool) -> Any:
    try:
        from google.cloud import storage
    except ImportError:
        raise StorageError(
            "gs:// needs google-cloud-storage, which is not installed",
            allowed="a local path, or an installation with the extra gcp",
            todo='pip install "shardline[gcp]"',
        ) from None
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from requests.adapters import HTTPAdapter  # type: ignore[import-untyped]
    from requests.utils import get_environ_proxies  # type: ignore[import-untyped]

    if anonymous:
        new_client: Any = storage.Client(project="emulated", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    else:
        try:
            credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
        except DefaultCredentialsError as error:
            raise StorageError(
                f"no credentials for gs://: {str(error).splitlines()[0]}",
                allowed="application default credentials",
                todo="run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
            ) from None
        # Objects are addressed by bucket alone: a project is not needed, and looking for one takes time.
        new_client = storage.Client(project=project or "none", credentials=credentials)
    # Else the client asks for each bucket's metadata in a thread of its own, for traces that nobody has switched on.
    new_client._bucket_metadata_cache = None
    with contextlib.suppress(ImportError):
        # Private, and only faster: a release that names it otherwise does without.
        from google.cloud.storage._media.requests import _request_helpers

        _request_helpers._SINGLE_GET_CHUNK_SIZE = _PIECE_BYTES
    session = new_client._http
    # What requests else finds out anew for each request, in a fourth of its time: proxies, certificates, .netrc.
    session.proxies = get_environ_proxies(new_client._connection.API_BASE_URL)
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.trust_env = False
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return new_client


def bill(project: str, source: str) -> None:
    """Set the project that is billed for requests of this process and its children to the source's bucket.

    Args:
        project: Its id; empty: none.
        source: URI of the source.
    """
    if project and source.startswith("gs://"):
        os.environ[BILLING_VARIABLE] = f"{split(source)[0]} {project}"
    else:
        os.environ.pop(BILLING_VARIABLE, None)


def exists(uri: str) -> bool:
    """Whether an object or a folder is there."""
    with explained(uri):
        if split(uri)[1] and _blob(uri).exists(**_call_options()):
            return True
        # Raises if the bucket is missing, which "not found" of an object does not distinguish.
        return any(_list(uri, max_results=1))


def info(uri: str) -> ObjectInfo:
    """Return size, version and checksums, from the metadata: no byte is read."""
    blob = _metadata(uri)
    return _describe(blob, blob.name.rpartition("/")[0] + "/")


def read_bytes(uri: str, generation: int | None) -> bytes:
    """Return the whole content, compared with its checksum."""
    for _ in range(_READ_ATTEMPTS):
        with explained(uri, is_object=True):
            blob = _blob(uri, generation)
            # Verified here, since the client does not verify continued downloads.
            content = cast(bytes, blob.download_as_bytes(raw_download=True, checksum=None, **_call_options()))
        if _hex(blob.crc32c) == f"{google_crc32c.value(content):08x}":
            return content
    raise TryAgain(f"{uri}: {_READ_ATTEMPTS} times the bytes that came have another checksum than the object")


def read_many(items: Sequence[ReadRequest], requests: int) -> list[bytes | BaseException]:
    """Return contents with a matching checksum, and any error for others, which the caller retries by `read_bytes`.

    By gcsfs, which takes a quarter of the CPU time of threads with the client.
    """
    import asyncio

    from fsspec.asyn import sync  # type: ignore[import-untyped]
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    # From core: the class that the package exports asks a gRPC service for the kind of every bucket. fsspec keeps one
    # instance for equal arguments, and makes another in a forked child; a project is not needed.
    files = GCSFileSystem(
        project="",
        token="anon" if endpoint else "google_default",
        endpoint_url=endpoint,
        requests_timeout=READ_TIMEOUT_S,
        use_listings_cache=False,
    )
    room = asyncio.Semaphore(requests)

    async def read(item: ReadRequest) -> bytes:
        async with room:
            # What its _cat_file does, which drops the headers.
            url = files.url(item.uri, generation=item.generation)
            headers, content = await files._call("GET", url, userProject=_bucket(item.uri).user_project)
            hashes = ",".join(headers.getall("x-goog-hash", ()))
            if (
                f"crc32c={b2a_base64(google_crc32c.value(content).to_bytes(4, 'big'), newline=False).decode()}"
                in hashes
            ):
                return cast(bytes, content)
            raise ValueError("the bytes changed on their way")

    async def read_all() -> list[bytes | BaseException]:
        return await asyncio.gather(*map(read, items), return_exceptions=True)

    return cast("list[bytes | BaseException]", sync(files.loop, read_all))


def copy_range(uri: str, start: int, length: int, sink: Callable[[bytes], object], generation: int | None) -> int:
    """Pass a part of the content to `sink` in pieces; ranges are not verified by checksum."""
    from google.api_core.exceptions import RequestRangeNotSatisfiable

    done = 0

    def write(piece: bytes) -> None:
        nonlocal done
        sink(piece)
        done += len(piece)

    with explained(uri, is_object=True), contextlib.suppress(RequestRangeNotSatisfiable):
        # It takes its generation from the first answer, for those that follow.
        blob = _blob(uri, generation)
        for first in range(start, start + length, _CALL_BYTES):
            last = min(first + _CALL_BYTES, start + length) - 1
            # A download asks no more of a file than this.
            target = SimpleNamespace(write=write)
            blob.download_to_file(target, start=first, end=last, raw_download=True, checksum=None, **_call_options())
            if start + done <= last:
                break
    return done


def open_read(uri: str, generation: int | None) -> BinaryIO:
    """Open for reading: a request per chunk, each with its own retry, all of one generation."""
    from google.cloud.storage.fileio import BlobReader

    # With its metadata the blob has a generation: else an overwrite between two chunks would give half of each.
    blob = _metadata(uri, generation)

    class ExplainedReader(BlobReader):  # type: ignore[misc]
        """The client's stream, with errors in our words."""

        def read(self, size: int | None = -1) -> bytes:
            # At the end the client would ask once more.
            if self.tell() >= blob.size:
                return b""
            with explained(uri, is_object=True):
                return cast(bytes, super().read(-1 if size is None else size))

    return cast(BinaryIO, ExplainedReader(blob, chunk_size=CHUNK_BYTES, raw_download=True, **_call_options()))


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder."""
    prefix = _prefix_of(uri)
    with explained(uri):
        listed = _list(uri, delimiter="/", fields="items(name),prefixes,nextPageToken")
        names = {blob.name.removeprefix(prefix) for blob in listed}
        names |= {folder.removeprefix(prefix).rstrip("/") for folder in listed.prefixes}
    return sorted(names - {""})


def list_folders(uri: str) -> list[str]:
    """Return the names of the folders directly below a folder, in the order of their objects."""
    with explained(uri):
        listed = _list(uri, delimiter="/", fields="prefixes,nextPageToken")
        for _ in listed:
            pass
    return [folder.removeprefix(_prefix_of(uri))[:-1] for folder in sorted(listed.prefixes)]


def list_objects(uri: str, recursive: bool) -> Iterator[ObjectInfo]:
    """Yield the objects below a folder, a page of 1,000 at a time."""
    with explained(uri):
        for blob in _list(uri, delimiter=None if recursive else "/", fields=_INFO_FIELDS):
            yield _describe(blob, _prefix_of(uri))


def publish_stream(uri: str, stream: BinaryIO, num_bytes: int) -> str:
    """Upload a stream, create-only."""
    from google.api_core.exceptions import PreconditionFailed

    with explained(uri):
        try:
            return _upload(uri, stream, num_bytes, if_generation_match=0)
        except PreconditionFailed:
            # A retry after a lost answer, which is success, or another writer's object.
            stream.seek(0)
            crc32c = crc32c_of_stream(stream)
            found = info(uri)
            if (found.size, found.crc32c) != (num_bytes, crc32c):
                raise AlreadyPublished(uri) from None
            return crc32c


def replace(uri: str, content: bytes) -> None:
    """Write an object whether or not it exists; a repeated request writes the same bytes again."""
    with explained(uri):
        _upload(uri, io.BytesIO(content), len(content))


def delete(uri: str) -> None:
    """Delete an object."""
    from google.api_core.exceptions import NotFound

    with explained(uri), contextlib.suppress(NotFound):
        _blob(uri).delete(**_call_options())


def delete_tree(uri: str, manifest_name: str) -> None:
    """Delete everything below a folder, its manifests first."""
    bucket, _ = split(uri)
    with explained(uri):
        names = {blob.name for blob in _list(uri, fields="items(name),nextPageToken")}
        manifests = {name for name in names if name.rpartition("/")[2] == manifest_name}
        # Until the last manifest is gone nothing else may go.
        for group in (manifests, names - manifests):
            with ThreadPoolExecutor(_DELETE_THREADS) as threads:
                list(threads.map(lambda name: delete(f"gs://{bucket}/{name}"), sorted(group)))


@contextlib.contextmanager
def explained(uri: str, *, is_object: bool = False) -> Iterator[None]:
    """Turn the client's errors into ours.

    Args:
        uri: What the call was about.
        is_object: "Not found" means the object, if the bucket is there.

    Raises:
        FileNotFoundError: There is no such object (or not in that generation).
        StorageError: There is no such bucket, no permission, or the request can never work.
        TryAgain: No answer, or only refusals to answer now, until the deadline.
    """
    try:
        from google.api_core import exceptions as api
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from requests.exceptions import RequestException  # type: ignore[import-untyped]
    except ImportError:
        client()
        raise
    broken = (TransportError, DataCorruption, ConnectionError, TimeoutError)
    try:
        yield
    except (api.NotFound, InvalidResponse) as error:
        if isinstance(error, InvalidResponse) and error.response.status_code != 404:
            raise _unexpected(uri, error) from error
        if is_object and _bucket_exists(uri):
            raise FileNotFoundError(uri) from None
        raise StorageError(
            f"{uri}: there is no such bucket",
            allowed="a bucket that exists",
            todo=f"check the name, or make it: gcloud storage buckets create gs://{split(uri)[0]}",
        ) from None
    except (api.Forbidden, api.Unauthorized) as error:
        raise StorageError(
            f"{uri}: no permission ({_first_line(error)})",
            allowed="an account with the role Storage Object User on the bucket",
            todo="grant the role to the account that runs this, or use other credentials",
        ) from None
    except (api.RetryError, api.TooManyRequests, api.ServerError, RequestException, *broken) as error:
        # Other errors of the system are of the local side of a transfer: disk full, file gone.
        raise TryAgain(f"{uri}: Cloud Storage does not answer ({_first_line(error)})") from error
    except GoogleAuthError as error:
        raise StorageError(
            f"{uri}: the credentials do not work ({_first_line(error)})",
            allowed="application default credentials that are valid",
            todo="run `gcloud auth application-default login`",
        ) from None
    except api.ClientError as error:
        raise _unexpected(uri, error) from error


def _unexpected(uri: str, error: Exception) -> StorageError:
    if "requester pays" in str(error).lower():
        return StorageError(
            f"{uri}: the bucket has requester pays: whoever reads it names a project that pays",
            allowed="a project whose billing is on, and which the account may use (serviceusage.services.use)",
            todo="set cloud.billing_project=PROJECT: sharding reads the bucket of sharding.source with it; what is in "
            "another bucket belongs in one without requester pays",
        )
    return StorageError(
        f"{uri}: Cloud Storage refuses this ({_first_line(error)})",
        allowed="gs://BUCKET/PATH with names that Cloud Storage allows",
        todo="check the URI",
    )


def _bucket_exists(uri: str) -> bool:
    """Ask by a listing: other than reading the bucket's metadata it needs no permission beyond that for objects."""
    from google.api_core import exceptions as api

    try:
        any(client().list_blobs(_bucket(uri), max_results=1, **_call_options()))
    except api.NotFound:
        return False
    except api.Forbidden:
        return True
    return True


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error)
    return (text.splitlines() or [type(error).__name__])[0][:300]


def _call_options() -> dict[str, Any]:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": (CONNECT_TIMEOUT_S, READ_TIMEOUT_S), "retry": DEFAULT_RETRY.with_timeout(RETRY_DEADLINE_S)}


def _prefix_of(uri: str) -> str:
    name = split(uri)[1]
    return name + "/" if name else ""


def _bucket(uri: str) -> Any:
    name = split(uri)[0]
    billed, _, project = os.environ.get(BILLING_VARIABLE, "").partition(" ")
    return client().bucket(name, user_project=project if billed == name else None)


def _list(uri: str, **options: Any) -> Any:
    return client().list_blobs(_bucket(uri), prefix=_prefix_of(uri), **options, **_call_options())


def _blob(uri: str, generation: int | None = None) -> Any:
    name = split(uri)[1]
    if not name:
        raise IsADirectoryError(uri)
    return _bucket(uri).blob(name, generation=generation)


def _metadata(uri: str, generation: int | None = None) -> Any:
    with explained(uri, is_object=True):
        blob = _blob(uri, generation)
        blob.reload(**_call_options())
        return blob


def _upload(uri: str, stream: BinaryIO, num_bytes: int, **conditions: int) -> str:
    """Upload a stream; return its crc32c, which client and bucket have compared."""
    blob = _blob(uri)
    # Without it the client holds chunks of 100 MB in memory.
    blob.chunk_size = CHUNK_BYTES
    content_type = _PAGE_TYPES.get(os.path.splitext(uri)[1], "application/octet-stream")  # noqa: PTH122
    blob.upload_from_file(
        stream, size=num_bytes, content_type=content_type, checksum="crc32c", **conditions, **_call_options()
    )
    return a2b_base64(blob.crc32c).hex()


def _describe(blob: Any, prefix: str) -> ObjectInfo:
    # Not blob.updated, whose strptime takes half of a listing's time.
    updated_s = datetime.fromisoformat(blob._properties["updated"]).timestamp()
    name, crc32c, md5 = blob.name.removeprefix(prefix), _hex(blob.crc32c), _hex(blob.md5_hash)
    return ObjectInfo(name, int(blob.size), int(blob.generation), crc32c, md5, updated_s)


def _hex(digest: str | None) -> str | None:
    return None if digest is None else a2b_base64(digest).hex()
