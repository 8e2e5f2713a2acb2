"""What Google's documentation promises about objects, asked by Google's client.

Pages below https://cloud.google.com/storage/docs are named at each test.
"""

import base64
import hashlib
from typing import Any

import google_crc32c
import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket, Client


def raw(client: Client, method: str, path: str, **options: Any) -> Any:
    """Send a request of one's own through the client's connection."""
    return client._http.request(method, client._connection.API_BASE_URL + path, timeout=20, **options)


def crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.value(content).to_bytes(4)).decode()


# --- buckets: json_api/v1/buckets ---


def test_buckets_are_made_listed_and_deleted(client: Client, bucket: Bucket) -> None:
    assert bucket.name in [found.name for found in client.list_buckets()]
    assert client.get_bucket(bucket.name).name == bucket.name
    assert client.lookup_bucket("not-there") is None
    bucket.delete()
    assert client.lookup_bucket(bucket.name) is None


def test_a_bucket_exists_once(client: Client, bucket: Bucket) -> None:
    with pytest.raises(exceptions.Conflict):
        client.create_bucket(bucket.name)


def test_a_bucket_with_objects_stays(bucket: Bucket) -> None:
    bucket.blob("x").upload_from_string(b"x")
    with pytest.raises(exceptions.Conflict):
        bucket.delete()


def test_bucket_names_have_rules(client: Client) -> None:
    # buckets#naming
    for name in ("ab", "Upper-case", "-start", "a" * 300):
        with pytest.raises(exceptions.BadRequest):
            client._post_resource("/b", {"name": name}, query_params={"project": "p"})


# --- objects.get: json_api/v1/objects/get, the resource: json_api/v1/objects#resource ---


def test_an_object_says_what_it_is(bucket: Bucket) -> None:
    content = b"some bytes"
    blob = bucket.blob("a/b c/ü%2F?#.txt")
    blob.metadata = {"colour": "blue"}
    blob.cache_control = "no-store"
    blob.upload_from_string(content, content_type="text/plain")
    found = bucket.get_blob("a/b c/ü%2F?#.txt")
    assert found is not None
    assert (found.size, found.content_type, found.cache_control) == (len(content), "text/plain", "no-store")
    assert found.crc32c == crc32c(content)
    assert found.md5_hash == base64.b64encode(hashlib.md5(content).digest()).decode()
    assert found.metadata == {"colour": "blue"}
    assert found.metageneration == 1
    assert found.generation > 10**15
    assert found.etag
    assert found.time_created is not None
    assert found.download_as_bytes() == content


def test_the_answer_names_only_the_fields_asked_for(client: Client, bucket: Bucket) -> None:
    # json_api#partial-response
    bucket.blob("x").upload_from_string(b"x")
    answer = raw(client, "GET", f"/storage/v1/b/{bucket.name}/o?fields=items(name,size),nextPageToken").json()
    assert answer == {"items": [{"name": "x", "size": "1"}]}


def test_what_is_not_there(client: Client, bucket: Bucket) -> None:
    # json_api/v1/status-codes
    assert bucket.get_blob("missing") is None
    answer = raw(client, "GET", f"/storage/v1/b/{bucket.name}/o/missing")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == 404
    assert error["errors"][0]["reason"] == "notFound"
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").download_as_bytes()
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").delete()
    with pytest.raises(exceptions.NotFound):
        client.bucket("no-such-bucket").blob("x").upload_from_string(b"x")
    with pytest.raises(exceptions.NotFound):
        list(client.list_blobs("no-such-bucket"))


def test_ranges(client: Client, bucket: Bucket) -> None:
    # json_api/v1/parameters#range
    blob = bucket.blob("x")
    blob.upload_from_string(b"0123456789")
    assert blob.download_as_bytes(start=2, end=4) == b"234"
    assert blob.download_as_bytes(start=7) == b"789"
    path = f"/storage/v1/b/{bucket.name}/o/x?alt=media"
    answer = raw(client, "GET", path, headers={"Range": "bytes=-3"})
    assert (answer.status_code, answer.content) == (206, b"789")
    assert answer.headers["Content-Range"] == "bytes 7-9/10"


def test_a_range_behind_the_end(bucket: Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"0123456789")
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        blob.download_as_bytes(start=10)


def test_a_download_carries_checksums_and_generation(client: Client, bucket: Bucket) -> None:
    # xml-api/reference-headers#xgooghash
    blob = bucket.blob("x")
    blob.upload_from_string(b"abc")
    answer = raw(client, "GET", f"/download/storage/v1/b/{bucket.name}/o/x?alt=media")
    assert f"crc32c={crc32c(b'abc')}" in answer.headers["x-goog-hash"]
    assert answer.headers["x-goog-generation"] == str(blob.generation)
    assert answer.headers["x-goog-stored-content-length"] == "3"


def test_a_generation_is_read_or_missed(bucket: Bucket) -> None:
    # json_api/v1/objects/get: generation; without versioning an overwritten one is gone
    blob = bucket.blob("x")
    blob.upload_from_string(b"old")
    old = blob.generation
    assert bucket.blob("x", generation=old).download_as_bytes() == b"old"
    blob.upload_from_string(b"new")
    assert blob.generation > old
    with pytest.raises(exceptions.NotFound):
        bucket.blob("x", generation=old).download_as_bytes()


def test_gzip_is_stored_as_it_came(bucket: Bucket) -> None:
    # transcoding: a client that accepts gzip gets the stored bytes with their encoding
    import gzip

    blob = bucket.blob("x")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(b"text"), content_type="text/plain")
    assert blob.download_as_bytes(raw_download=True) == gzip.compress(b"text")
    assert blob.download_as_bytes() == b"text"


# --- preconditions: request-preconditions ---


def test_generation_0_creates_and_never_overwrites(bucket: Bucket) -> None:
    bucket.blob("x").upload_from_string(b"one", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").upload_from_string(b"two", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("x").upload_from_string(b"2" * (9 << 20), if_generation_match=0)
    assert bucket.blob("x").download_as_bytes() == b"one"


def test_generations_guard_every_verb(bucket: Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"one")
    here, other = blob.generation, blob.generation + 1
    failures = [
        lambda: blob.upload_from_string(b"two", if_generation_match=other),
        lambda: blob.upload_from_string(b"two", if_generation_not_match=here),
        lambda: blob.upload_from_string(b"two", if_metageneration_match=7),
        lambda: blob.reload(if_generation_match=other),
        lambda: blob.reload(if_metageneration_match=7),
        lambda: blob.download_as_bytes(if_generation_match=other),
        lambda: blob.delete(if_generation_match=other),
        lambda: blob.delete(if_metageneration_not_match=1),
    ]
    for number, fail in enumerate(failures):
        with pytest.raises(exceptions.PreconditionFailed):
            fail()
            pytest.fail(f"number {number} was not refused")
    blob.reload(if_generation_match=here, if_metageneration_match=1)
    assert bucket.blob("x").download_as_bytes(if_generation_match=here, if_metageneration_match=1) == b"one"
    blob.upload_from_string(b"two", if_generation_match=here)
    blob.delete(if_generation_match=blob.generation)
    assert not bucket.blob("x").exists()


def test_a_reader_who_has_it_already_is_told_so(client: Client, bucket: Bucket) -> None:
    # request-preconditions: a GET whose "not match" does not hold is answered with 304
    blob = bucket.blob("x")
    blob.upload_from_string(b"one")
    path = f"/storage/v1/b/{bucket.name}/o/x?ifGenerationNotMatch={blob.generation}"
    assert raw(client, "GET", path).status_code == 304
    assert raw(client, "GET", path + "&alt=media").status_code == 304
    assert raw(client, "GET", path + "1").status_code == 200


def test_a_refused_precondition_is_in_googles_form(client: Client, bucket: Bucket) -> None:
    # json_api/v1/status-codes: 412 conditionNotMet
    bucket.blob("x").upload_from_string(b"one")
    answer = raw(client, "DELETE", f"/storage/v1/b/{bucket.name}/o/x?ifGenerationMatch=1")
    assert answer.status_code == 412
    error = answer.json()["error"]
    assert error["code"] == 412
    assert error["errors"][0]["reason"] == "conditionNotMet"


# --- names: objects#naming ---


def test_names_that_are_no_paths(bucket: Bucket) -> None:
    names = ["a", "a/b", "a/", "a//b", "/a", "x/../y", "d/.", "é", "x" * 1024, "*?[]", "\U0001f600"]
    for name in names:
        bucket.blob(name).upload_from_string(name.encode())
    assert [blob.name for blob in bucket.list_blobs()] == sorted(names)
    for name in names:
        assert bucket.blob(name).download_as_bytes() == name.encode()
    for name in names:
        bucket.blob(name).delete()
    assert list(bucket.list_blobs()) == []


def test_names_that_are_refused(bucket: Bucket) -> None:
    for name in ("x" * 1025, "a\nb", "a\rb"):
        with pytest.raises(exceptions.BadRequest):
            bucket.blob(name).upload_from_string(b"x")
