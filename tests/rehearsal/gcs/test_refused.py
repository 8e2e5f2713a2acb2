"""What is not here is refused by its name, and nothing happens; what only asks for the default is taken."""

from typing import Any

import pytest
import requests

from rehearsal.gcs import BucketServer

BUCKET, OBJECT = "/storage/v1/b/bucket-1", "/storage/v1/b/bucket-1/o/x"
UPLOAD = "/upload/storage/v1/b/bucket-1/o?name=new&uploadType="


def ask(server: BucketServer, method: str, path: str, **options: Any) -> requests.Response:
    return requests.request(method, server.endpoint + path, timeout=30, **options)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "name"),
    [
        ("PATCH", OBJECT, {"temporaryHold": True}, {}, "field temporaryHold"),
        ("PATCH", OBJECT, {"eventBasedHold": True}, {}, "field eventBasedHold"),
        ("PUT", OBJECT, {"retention": {"mode": "Locked"}}, {}, "field retention"),
        ("POST", f"{UPLOAD}resumable", {"eventBasedHold": True}, {}, "field eventBasedHold"),
        ("POST", f"{UPLOAD}resumable", {"kmsKeyName": "projects/p/k"}, {}, "field kmsKeyName"),
        ("POST", f"{OBJECT}/rewriteTo/b/bucket-1/o/new", {"temporaryHold": True}, {}, "field temporaryHold"),
        ("POST", "/storage/v1/b", {"name": "new-1", "versioning": {"enabled": True}}, {}, "field versioning"),
        ("PATCH", BUCKET, {"versioning": {"enabled": True}}, {}, "field versioning"),
        (
            "PATCH",
            BUCKET,
            {"lifecycle": {"rule": [{"condition": {"age": 0}}]}},
            {},
            "lifecycle without an age of a day or more",
        ),
        (
            "PATCH",
            BUCKET,
            {"lifecycle": {"rule": [{"condition": {"isLive": True}}]}},
            {},
            "lifecycle without an age of a day or more",
        ),
        ("PATCH", BUCKET, {"retentionPolicy": {"retentionPeriod": "60"}}, {}, "field retentionPolicy"),
        ("PATCH", BUCKET, {"encryption": {"defaultKmsKeyName": "k"}}, {}, "field encryption"),
        ("PATCH", f"{BUCKET}?ifMetagenerationMatch=7", {}, {}, "parameter ifMetagenerationMatch"),
        ("DELETE", f"{BUCKET}?ifMetagenerationNotMatch=1", None, {}, "parameter ifMetagenerationNotMatch"),
        ("GET", f"{BUCKET}/o?matchGlob=*", None, {}, "parameter matchGlob"),
        ("POST", f"{UPLOAD}media&kmsKeyName=k", None, {}, "parameter kmsKeyName"),
        ("GET", OBJECT, None, {"If-Match": "CAE="}, "header if-match"),
        ("DELETE", OBJECT, None, {"If-Match": "CAE="}, "header if-match"),
        ("GET", f"{OBJECT}?alt=media", None, {"If-None-Match": "CAE="}, "header if-none-match"),
        ("GET", f"{OBJECT}?alt=media", None, {"x-goog-encryption-key": "a"}, "header x-goog-encryption-key"),
        ("PUT", "/bucket-1/new", None, {"x-goog-encryption-algorithm": "AES256"}, "header x-goog-encryption-algorithm"),
        ("PUT", "/bucket-1/new", None, {"x-goog-copy-source": "bucket-1/x"}, "header x-goog-copy-source"),
    ],
)
def test_by_name(
    bucket_server: BucketServer, method: str, path: str, body: Any, headers: dict[str, str], name: str
) -> None:
    ask(bucket_server, "POST", UPLOAD.replace("new", "x") + "media", data=b"there")
    before = bucket_server.objects.get("bucket-1", "x"), len(bucket_server.objects.buckets())
    # Other tests of this process may have left sessions of uploads, with their bytes.
    content = set((bucket_server.root / ".gcs" / "content").iterdir())
    answer = ask(bucket_server, method, path, json=body, headers=headers)
    assert answer.status_code == 501 and f"{name} is not implemented here" in answer.text
    assert (bucket_server.objects.get("bucket-1", "x"), len(bucket_server.objects.buckets())) == before
    assert bucket_server.objects.find("bucket-1", "new") is None
    # A refused upload leaves no bytes.
    assert set((bucket_server.root / ".gcs" / "content").iterdir()) == content


def test_the_default_may_be_said(bucket_server: BucketServer) -> None:
    ask(bucket_server, "POST", UPLOAD.replace("new", "x") + "media", data=b"there")
    assert ask(bucket_server, "PATCH", BUCKET, json={"versioning": {"enabled": False}}).ok
    assert ask(bucket_server, "PATCH", OBJECT, json={"temporaryHold": False, "eventBasedHold": None}).ok
