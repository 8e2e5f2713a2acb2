"""The client of Cloud Storage: one a process, its patience, and its errors in our terms."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

from contracts.errors import StorageError, TryAgain

CONNECT_TIMEOUT_S = 10
# Between two bytes of an answer; a chunk of 16 MiB on a slow line still moves.
READ_TIMEOUT_S = 60
# How long one call is retried, with growing pauses, before it counts as no answer.
RETRY_DEADLINE_S = 60.0
# Streams of one process that keep their connection; more are made and thrown away.
_CONNECTIONS = 64

_lock = threading.Lock()
_client: tuple[int, tuple[str | None, ...], Any] | None = None
# Bucket of the source, and project that pays for requests to it (cloud.billing_project); children inherit it.
BILLING_VARIABLE = "SHARDLINE_BILLING_PROJECT"
_BUCKET_IN_URL = re.compile(r"/b/([^/?]+)")
# What else decides which client it is.
_VARIABLES = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")
# A forked child must not even close its parent's sockets.
_inherited: list[Any] = []


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

    if anonymous:
        made = storage.Client(project="emulated", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
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
        made = storage.Client(project=project or "none", credentials=credentials)
    # Else the client asks for each bucket's metadata in a thread of its own, for traces that nobody has switched on.
    made._bucket_metadata_cache = None
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS)
    # requests leaves this method to whoever needs headers of their own for a request.
    adapter.add_headers = _name_payer
    made._http.mount("https://", adapter)
    made._http.mount("http://", adapter)
    return made


def bill(project: str, source: str) -> None:
    """Name the project that pays for what this process, and its children, ask of a source's bucket, and of no other.

    Args:
        project: Its id; empty: none.
        source: URI of the source.
    """
    if project and source.startswith("gs://"):
        os.environ[BILLING_VARIABLE] = f"{_bucket_of(source)} {project}"
    else:
        os.environ.pop(BILLING_VARIABLE, None)


def payer_of(bucket: str) -> str:
    """Return the project that pays for requests to a bucket; empty where none is named."""
    billed, _, project = os.environ.get(BILLING_VARIABLE, "").partition(" ")
    return project if billed == bucket else ""


def _name_payer(request: Any, **_: object) -> None:
    found = _BUCKET_IN_URL.search(request.url)
    if found is not None and (project := payer_of(found[1])):
        # https://cloud.google.com/storage/docs/requester-pays: header or query parameter userProject.
        request.headers["x-goog-user-project"] = project


def call_options() -> dict[str, Any]:
    """Return timeout and retry for any call of the client."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": (CONNECT_TIMEOUT_S, READ_TIMEOUT_S), "retry": DEFAULT_RETRY.with_timeout(RETRY_DEADLINE_S)}


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
            todo=f"check the name, or make it: gcloud storage buckets create gs://{_bucket_of(uri)}",
        ) from None
    except (api.Forbidden, api.Unauthorized) as error:
        raise StorageError(
            f"{uri}: no permission ({_first_line(error)})",
            allowed="an account with the role Storage Object User on the bucket",
            todo="grant the role to the account that runs this, or use other credentials",
        ) from None
    except (api.RetryError, api.TooManyRequests, api.ServerError, RequestException, TransportError, OSError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError) or (
            isinstance(error, OSError) and not isinstance(error, RequestException | ConnectionError | TimeoutError)
        ):
            # The local side of a transfer: disk full, file gone.
            raise
        raise TryAgain(f"{uri}: Cloud Storage does not answer ({_first_line(error)})") from error
    except DataCorruption as error:
        raise TryAgain(f"{uri}: the bytes changed on their way ({_first_line(error)})") from error
    except GoogleAuthError as error:
        raise StorageError(
            f"{uri}: the credentials do not work ({_first_line(error)})",
            allowed="application default credentials that are valid",
            todo="run `gcloud auth application-default login`",
        ) from None
    except api.ClientError as error:
        raise _unexpected(uri, error) from error


def hex_digest(digest: str | None) -> str | None:
    """Return Cloud Storage's base64 checksum as hex digits."""
    return None if digest is None else base64.b64decode(digest).hex()


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
        next(iter(client().list_blobs(_bucket_of(uri), max_results=1, **call_options())), None)
    except api.NotFound:
        return False
    except api.Forbidden:
        return True
    return True


def _bucket_of(uri: str) -> str:
    return uri.removeprefix("gs://").partition("/")[0]


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error)
    return (text.splitlines() or [type(error).__name__])[0][:300]
