"""What Google's documentation promises about uploads, asked by Google's client and by requests of one's own."""

import base64
import hashlib
from typing import Any

import google_crc32c
import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket, Client
from google.cloud.storage.fileio import BlobWriter

CHUNK = 256 << 10
CONTENT = bytes(range(256)) * 4096  # 1 MiB


def raw(client: Client, method: str, url: str, **options: Any) -> Any:
    """Send a request of one's own through the client's connection."""
    if url.startswith("/"):
        url = client._connection.API_BASE_URL + url
    return client._http.request(method, url, timeout=20, **options)


def start(client: Client, bucket: Bucket, name: str, **options: Any) -> str:
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&name={name}"
    answer = raw(client, "POST", path, **options)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["Location"])


def put(client: Client, url: str, content: bytes, content_range: str, **headers: str) -> Any:
    return raw(client, "PUT", url, data=content, headers={"Content-Range": content_range, **headers})


def crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.value(content).to_bytes(4)).decode()


def test_simple_upload(client: Client, bucket: Bucket) -> None:
    # uploading-objects: single-request, uploadType=media
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=a%2Fb"
    answer = raw(client, "POST", path, data=b"abc", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 200
    assert answer.json()["name"] == "a/b"
    found = bucket.get_blob("a/b")
    assert found is not None
    assert (found.content_type, found.download_as_bytes()) == ("text/plain", b"abc")


def test_a_body_in_chunks_of_unknown_length(client: Client, bucket: Bucket) -> None:
    # RFC 9112, 7.1: chunked transfer coding
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"
    answer = raw(client, "POST", path, data=iter([b"abc", b"d" * 100_000]))
    assert answer.status_code == 200
    assert bucket.blob("x").download_as_bytes() == b"abc" + b"d" * 100_000


def test_wrong_checksums_are_refused(client: Client, bucket: Bucket) -> None:
    # json_api/v1/objects#resource: crc32c and md5Hash of an upload are compared
    wrong_md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    for wrong in ({"crc32c": crc32c(b"other")}, {"md5Hash": wrong_md5}):
        lines = ["--b", "Content-Type: application/json", "", str({"name": "x", **wrong}).replace("'", '"')]
        lines += ["--b", "Content-Type: text/plain", "", "abc", "--b--"]
        answer = raw(
            client,
            "POST",
            f"/upload/storage/v1/b/{bucket.name}/o?uploadType=multipart",
            data="\r\n".join(lines),
            headers={"Content-Type": "multipart/related; boundary=b"},
        )
        assert answer.status_code == 400, wrong
        assert not bucket.blob("x").exists()


def test_a_checksum_in_a_header_is_compared(client: Client, bucket: Bucket) -> None:
    # xml-api/reference-headers#xgooghash
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=x"
    answer = raw(client, "POST", path, data=b"abc", headers={"x-goog-hash": f"crc32c={crc32c(b'other')}"})
    assert answer.status_code == 400
    assert not bucket.blob("x").exists()


def test_the_client_uploads_in_chunks(bucket: Bucket) -> None:
    # performing-resumable-uploads#chunked-upload; below 8 MiB the client sends one request
    content = CONTENT * 9 + b"tail"
    blob = bucket.blob("x", chunk_size=4 * CHUNK)
    blob.metadata = {"a": "1"}
    blob.upload_from_string(content, checksum="crc32c")
    found = bucket.get_blob("x")
    assert found is not None
    assert (found.crc32c, found.metadata) == (crc32c(content), {"a": "1"})
    assert found.download_as_bytes() == content


def test_an_upload_of_unknown_size(bucket: Bucket) -> None:
    # performing-resumable-uploads: Content-Range bytes 0-1/*
    with BlobWriter(bucket.blob("x"), chunk_size=CHUNK) as writer:
        for _ in range(3):
            writer.write(CONTENT[:200_000])
    assert bucket.blob("x").download_as_bytes() == CONTENT[:200_000] * 3


def test_chunks_status_and_the_end(client: Client, bucket: Bucket) -> None:
    # performing-resumable-uploads#status-check
    url = start(client, bucket, "x", json={"metadata": {"k": "v"}}, headers={"X-Upload-Content-Type": "text/plain"})
    total = len(CONTENT)
    asked = put(client, url, b"", f"bytes */{total}")
    assert (asked.status_code, "Range" in asked.headers) == (308, False)
    first = put(client, url, CONTENT[:CHUNK], f"bytes 0-{CHUNK - 1}/{total}")
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    assert not bucket.blob("x").exists()
    asked = put(client, url, b"", f"bytes */{total}")
    assert (asked.status_code, asked.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    done = put(client, url, CONTENT[CHUNK:], f"bytes {CHUNK}-{total - 1}/{total}")
    assert done.status_code == 200
    assert done.json()["size"] == str(total)
    found = bucket.get_blob("x")
    assert found is not None
    assert (found.content_type, found.metadata) == ("text/plain", {"k": "v"})
    assert found.download_as_bytes() == CONTENT


def test_a_finished_session_says_so(client: Client, bucket: Bucket) -> None:
    # performing-resumable-uploads#status-check: 200 when the upload is complete
    url = start(client, bucket, "x")
    assert put(client, url, b"abc", "bytes 0-2/3").status_code == 200
    again = put(client, url, b"", "bytes */3")
    assert (again.status_code, again.json()["size"]) == (200, "3")


def test_bytes_that_are_there_are_sent_again(client: Client, bucket: Bucket) -> None:
    # performing-resumable-uploads: what was persisted already is ignored
    url, total = start(client, bucket, "x"), len(CONTENT)
    put(client, url, CONTENT[: 2 * CHUNK], f"bytes 0-{2 * CHUNK - 1}/{total}")
    done = put(client, url, CONTENT[CHUNK:], f"bytes {CHUNK}-{total - 1}/{total}")
    assert done.status_code == 200
    assert bucket.blob("x").download_as_bytes() == CONTENT


def test_a_gap_is_not_taken(client: Client, bucket: Bucket) -> None:
    url, total = start(client, bucket, "x"), len(CONTENT)
    put(client, url, CONTENT[:CHUNK], f"bytes 0-{CHUNK - 1}/{total}")
    gap = put(client, url, CONTENT[2 * CHUNK :], f"bytes {2 * CHUNK}-{total - 1}/{total}")
    assert gap.status_code != 200
    assert not bucket.blob("x").exists()
    asked = put(client, url, b"", f"bytes */{total}")
    assert asked.headers["Range"] == f"bytes=0-{CHUNK - 1}"


def test_odd_chunks_are_kept_in_part(client: Client, bucket: Bucket) -> None:
    # performing-resumable-uploads#chunked-upload: multiples of 256 KiB, but for the last
    url, total = start(client, bucket, "x"), len(CONTENT)
    size = CHUNK + 1000
    answer = put(client, url, CONTENT[:size], f"bytes 0-{size - 1}/{total}")
    assert (answer.status_code, answer.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    done = put(client, url, CONTENT[CHUNK:], f"bytes {CHUNK}-{total - 1}/{total}")
    assert done.status_code == 200
    assert bucket.blob("x").download_as_bytes() == CONTENT


def test_a_session_is_cancelled(client: Client, bucket: Bucket) -> None:
    # performing-resumable-uploads#cancel-upload: 499
    url = start(client, bucket, "x")
    put(client, url, CONTENT[:CHUNK], f"bytes 0-{CHUNK - 1}/{len(CONTENT)}")
    assert raw(client, "DELETE", url).status_code == 499
    assert put(client, url, b"", f"bytes */{len(CONTENT)}").status_code in (404, 410, 499)
    assert not bucket.blob("x").exists()


def test_a_session_keeps_its_precondition(client: Client, bucket: Bucket) -> None:
    path = f"/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&name=x&ifGenerationMatch=0"
    url = raw(client, "POST", path).headers["Location"]
    bucket.blob("x").upload_from_string(b"first")
    assert put(client, url, b"second", "bytes 0-5/6").status_code == 412
    assert bucket.blob("x").download_as_bytes() == b"first"


def test_the_last_chunk_brings_a_checksum(client: Client, bucket: Bucket) -> None:
    url = start(client, bucket, "x")
    answer = put(client, url, b"abc", "bytes 0-2/3", **{"x-goog-hash": f"crc32c={crc32c(b'abd')}"})
    assert answer.status_code == 400
    assert not bucket.blob("x").exists()


def test_an_upload_needs_a_name(client: Client, bucket: Bucket) -> None:
    answer = raw(client, "POST", f"/upload/storage/v1/b/{bucket.name}/o?uploadType=media", data=b"abc")
    assert answer.status_code == 400


def test_an_existing_object_is_kept(bucket: Bucket) -> None:
    bucket.blob("x").upload_from_string(b"first", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x", chunk_size=CHUNK).upload_from_string(CONTENT * 9, if_generation_match=0)
    assert bucket.blob("x").download_as_bytes() == b"first"
