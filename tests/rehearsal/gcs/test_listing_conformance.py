"""Listings: what https://cloud.google.com/storage/docs/json_api/v1/objects/list promises, and a model of it."""

import string

import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket, Client
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rehearsal.gcs.api import list_page
from rehearsal.gcs.objects import Objects, Record


def fill(bucket: Bucket, *names: str) -> None:
    for name in names:
        bucket.blob(name).upload_from_string(b"x")


def names_of(listing: object) -> list[str]:
    return [blob.name for blob in listing]  # type: ignore[attr-defined]


def test_names_come_in_the_order_of_their_bytes(bucket: Bucket) -> None:
    names = ["a/b", "a-b", "a", "B", "é", "\U0001f600", "\uff5e"]
    fill(bucket, *names)
    assert names_of(bucket.list_blobs()) == sorted(names, key=str.encode)


def test_pages(client: Client, bucket: Bucket) -> None:
    names = [f"{number:02d}" for number in range(11)]
    fill(bucket, *names)
    pages = [names_of(page) for page in client.list_blobs(bucket, page_size=4).pages]
    assert pages == [names[:4], names[4:8], names[8:]]
    assert names_of(client.list_blobs(bucket, max_results=5)) == names[:5]


def test_prefix_and_delimiter(bucket: Bucket) -> None:
    fill(bucket, "a", "b/1", "b/2", "b/c/1", "b/c/2", "b0", "d/1")
    top = bucket.list_blobs(delimiter="/")
    assert (names_of(top), sorted(top.prefixes)) == (["a", "b0"], ["b/", "d/"])
    below = bucket.list_blobs(prefix="b/", delimiter="/")
    assert (names_of(below), sorted(below.prefixes)) == (["b/1", "b/2"], ["b/c/"])
    assert names_of(bucket.list_blobs(prefix="b")) == ["b/1", "b/2", "b/c/1", "b/c/2", "b0"]


def test_offsets(bucket: Bucket) -> None:
    fill(bucket, "a", "b", "c", "d")
    assert names_of(bucket.list_blobs(start_offset="b", end_offset="d")) == ["b", "c"]


def test_folders_with_an_object_of_their_own(bucket: Bucket) -> None:
    fill(bucket, "f/", "f/x")
    plain = bucket.list_blobs(delimiter="/")
    assert (names_of(plain), plain.prefixes) == ([], {"f/"})
    both = bucket.list_blobs(delimiter="/", include_trailing_delimiter=True)
    assert (names_of(both), both.prefixes) == (["f/"], {"f/"})


def test_a_page_token_of_nobody(client: Client, bucket: Bucket) -> None:
    fill(bucket, "a")
    with pytest.raises(exceptions.BadRequest):
        names_of(client.list_blobs(bucket, page_token="!"))


_NAMES = st.lists(st.text("ab/-", min_size=1, max_size=6) | st.text(string.printable[:-5], min_size=1), max_size=25)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=_NAMES,
    prefix=st.text("ab/-", max_size=3),
    delimiter=st.sampled_from(["", "/", "-", "b/"]),
    limit=st.integers(1, 7),
    trailing=st.booleans(),
)
@example(names=["/", "/0"], prefix="", delimiter="/", limit=1, trailing=True)
def test_any_listing_equals_a_model(
    objects: Objects,
    tmp_path_factory: pytest.TempPathFactory,
    names: list[str],
    prefix: str,
    delimiter: str,
    limit: int,
    trailing: bool,
) -> None:
    # Not sockets but the page itself: 200 examples of up to 25 objects.
    bucket = "b-1"
    for record in objects.rows(bucket, "", "", 1000):
        objects.delete(bucket, record.name)
    for name in names:
        objects._put(Record(bucket, name, 1, tmp_path_factory.getbasetemp() / "no such file", 0, "", ""))
    query = {"prefix": prefix, "delimiter": delimiter, "maxResults": str(limit)}
    if trailing:
        query["includeTrailingDelimiter"] = "true"
    items, prefixes, token = [], [], None
    for _ in range(100):
        page = list_page(objects, bucket, query | ({"pageToken": token} if token else {}))
        assert len(page.items) + len(page.prefixes) <= limit or len(page.items) == len(page.prefixes) == 1
        items += [record.name for record in page.items]
        prefixes += page.prefixes
        token = page.next_token
        if token is None:
            break
    assert token is None
    expected_items, expected_prefixes = [], []
    for name in sorted(set(names), key=str.encode):
        if not name.startswith(prefix):
            continue
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            expected_items.append(name)
            continue
        common = name[: cut + len(delimiter)]
        if common not in expected_prefixes:
            expected_prefixes.append(common)
        if trailing and name == common:
            expected_items.append(name)
    assert (items, prefixes) == (expected_items, expected_prefixes)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    objects = Objects(tmp_path_factory.mktemp("objects"))
    objects.create_bucket("b-1", {})
    return objects
