"""Images built by Cloud Build's API: Google's client, against a server that names digests and builds nothing."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import googleapiclient.discovery
import httplib2
import pytest

from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import parse_config
from contracts.errors import ConfigError, TryAgain
from pipelines.images.build import build_images, find_sources, stage_context
from pipelines.images.client import Client
from pipelines.images.cloud_build import build_in_cloud, pack
from pipelines.images.record import ROLES, is_pinned
from rehearsal.gcs import BucketServer

PROJECT, BUCKET = "acme-vision", "bucket-1"
ACCOUNT = f"shardline-build@{PROJECT}.iam.gserviceaccount.com"
REPOSITORY = f"us-central1-docker.pkg.dev/{PROJECT}/shardline"
VALUES: dict[str, Any] = {
    "run": {"name": "digits", "root": f"gs://{BUCKET}/lines"},
    "cloud": {
        "project": PROJECT,
        "region": "us-central1",
        "images": {"repository": REPOSITORY, "build_account": ACCOUNT},
    },
}
GIVEN = {
    "_REPOSITORY": REPOSITORY,
    "_TAG": "v1",
    "_TENSORRT": "",
    "_RTX": "",
    "_USER": "root",
    "_CUDA_TRAINER": "cu126",
    "_CUDA_EXPORT": "cu126",
}


@dataclass
class CloudBuild:
    """The server's side of projects.locations.builds: list, create, and get, whose second answer is the end."""

    builds: dict[str, dict[str, Any]] = field(default_factory=dict)
    refusals: int = 0
    """Requests that an API which is not enabled yet refuses."""
    closed: set[str] = field(default_factory=set)
    """Regions in which the project may not build."""
    failure: str = ""

    def request(self, uri: str, method: str = "GET", body: Any = None, **_: Any) -> tuple[Any, bytes]:
        if self.refusals:
            self.refusals -= 1
            return answer(403, {"error": {"code": 403, "message": "cloudbuild.googleapis.com: it is disabled"}})
        parts = urlsplit(uri)
        if method == "POST":
            region = re.search(r"locations/([^/]+)", parts.path)
            assert region is not None
            if region.group(1) in self.closed:
                text = "failed precondition: due to quota restrictions, cannot run builds in this region"
                return answer(400, {"error": {"code": 400, "message": text}})
            name = f"projects/{PROJECT}/locations/{region.group(1)}/builds/{len(self.builds)}"
            self.builds[name] = {**json.loads(body), "name": name, "status": "WORKING", "looks": 0}
            return answer(200, {"metadata": {"build": {"name": name, "status": "QUEUED"}}})
        if parts.path.endswith("/builds"):
            tag = re.search(r"shardline-[0-9a-f]+", uri)
            assert tag is not None
            place = parts.path.removeprefix("/v1/")
            found = [b for name, b in self.builds.items() if name.startswith(place) and tag.group() in b["tags"]]
            return answer(200, {"builds": found})
        build = self.builds[parts.path.removeprefix("/v1/")]
        build["looks"] += 1
        build["steps"] = [{"id": "trainer", "status": "WORKING"}]
        if build["looks"] > 1:
            build["status"] = "FAILURE" if self.failure else "SUCCESS"
            build["steps"][0]["status"] = build["status"]
            build["statusDetail"], build["logUrl"] = self.failure, "https://console.cloud.google.com/builds"
            images = [
                {"name": f"{build['substitutions']['_REPOSITORY']}/{role}:v1", "digest": DIGEST} for role in ROLES
            ]
            build["results"] = {} if self.failure else {"images": images}
        return answer(200, build)

    def close(self) -> None:
        """As httplib2.Http."""


DIGEST = f"sha256:{'ab' * 32}"


def answer(status: int, value: Any) -> tuple[Any, bytes]:
    return httplib2.Response({"status": status, "content-type": "application/json"}), json.dumps(value).encode()


@pytest.fixture
def server(bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> CloudBuild:
    server = CloudBuild()

    def open_service(client: Client) -> Any:
        return googleapiclient.discovery.build("cloudbuild", "v1", http=server, static_discovery=True)

    monkeypatch.setattr(Client, "_open", open_service)
    return server


@pytest.fixture
def config() -> RunConfig:
    return parse_config(VALUES, where="test")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "context"
    stage_context(find_sources(), folder)
    return folder


def test_images_are_built_as_the_account_of_builds_and_recorded(
    server: CloudBuild, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_in_cloud, "__kwdefaults__", {"poll_s": 0.0})
    said: list[str] = []
    record = build_images(config, tool="cloud", tensorrt="11.2.1", say=said.append)
    assert all(is_pinned(getattr(record, role)) for role in ROLES)
    assert (tmp_path / f"images-{PROJECT}.json").exists()
    (build,) = server.builds.values()
    assert build["serviceAccount"] == f"projects/{PROJECT}/serviceAccounts/{ACCOUNT}"
    assert build["options"]["logging"] == "CLOUD_LOGGING_ONLY"
    assert build["substitutions"]["_TENSORRT"] == "11.2.1"
    assert any("trainer working" in text for text in said) and any("trainer success" in text for text in said)
    # The source is in the line's folder, and holds what Dockerfiles name.
    place = build["source"]["storageSource"]
    content = storage.read_bytes(f"gs://{place['bucket']}/{place['object']}")
    # Named by the tar file: another zlib compresses the same to other bytes.
    assert place["object"] == f"lines/digits/images/{hashlib.sha256(gzip.decompress(content)).hexdigest()}.tgz"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = archive.getnames()
    assert {"pyproject.toml", "docker/trainer.Dockerfile", "trainer/__init__.py"} <= set(names)


def test_an_api_that_is_new_is_waited_for(server: CloudBuild, config: RunConfig, context: Path) -> None:
    server.refusals = 2
    said: list[str] = []
    assert set(build_in_cloud(config, context, GIVEN, said.append, poll_s=0)) == set(ROLES)
    assert said[0] == "waiting for Cloud Build"


def test_a_killed_command_goes_on_with_its_build(server: CloudBuild, config: RunConfig, context: Path) -> None:
    def kill(text: str) -> None:
        if "working" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_in_cloud(config, context, GIVEN, kill, poll_s=0)
    first = build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    assert build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0) == first
    assert len(server.builds) == 1
    build_in_cloud(config, context, {**GIVEN, "_TENSORRT": "11.3.0"}, lambda _: None, poll_s=0)
    assert len(server.builds) == 2


def test_where_a_region_is_closed_the_next_open_one_builds(
    server: CloudBuild, config: RunConfig, context: Path
) -> None:
    server.closed = {"us-central1", "us-west2"}
    said: list[str] = []
    build_in_cloud(config, context, GIVEN, said.append, poll_s=0)
    (name,) = server.builds
    assert "/locations/europe-west1/" in name
    assert "the project may not build in us-central1" in said


def test_a_build_that_fails_is_told_with_its_log_and_made_again(
    server: CloudBuild, config: RunConfig, context: Path
) -> None:
    server.failure = "Build step failure: step 1 exited with code 2"
    with pytest.raises(ConfigError, match=r"ended: failure: Build step failure: .*console\.cloud\.google\.com"):
        build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    server.failure = "These quota metrics exceed quota limits: cloudbuild.googleapis.com/concurrent_builds"
    with pytest.raises(TryAgain, match="run the same command again"):
        build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    server.failure = ""
    assert set(build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)) == set(ROLES)
    assert len(server.builds) == 3


def test_without_a_bucket_nothing_is_built(server: CloudBuild, context: Path) -> None:
    here = parse_config({**VALUES, "run": {"root": "runs"}}, where="test")
    with pytest.raises(ConfigError, match="reads the source from a bucket"):
        build_in_cloud(here, context, GIVEN, lambda _: None, poll_s=0)
    assert not server.builds


def test_a_folder_is_packed_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = pack(tmp_path)
    (tmp_path / "a" / "x.py").touch()
    assert pack(tmp_path) == first
    (tmp_path / "a" / "x.py").write_text("2")
    assert pack(tmp_path) != first
