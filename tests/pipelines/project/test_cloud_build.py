"""Images built by Cloud Build's API, against the local cloud, which names digests and builds nothing."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError, TryAgain
from contracts.resolve import parse_config
from pipelines.images import cloud_build
from pipelines.images.build import build_images, find_sources, stage_context
from pipelines.images.cloud_build import build_in_cloud, pack, regions_of
from pipelines.images.record import ROLES, is_pinned
from pipelines.project.apply import apply
from pipelines.project.client import Client
from pipelines.project.declaration import declare
from pipelines.project.inspect import survey
from rehearsal.projects.state import Lag, ProjectState
from tests.pipelines.project.cloud import BUCKET, PROJECT, EmptyCloud

ACCOUNT = f"shardline-build@{PROJECT}.iam.gserviceaccount.com"
REPOSITORY = f"us-central1-docker.pkg.dev/{PROJECT}/shardline"
VALUES: dict[str, Any] = {
    "run": {"name": "digits", "root": f"gs://{BUCKET}/lines"},
    "cloud": {
        "project": PROJECT,
        "region": "us-central1",
        "service_account": f"shardline-runner@{PROJECT}.iam.gserviceaccount.com",
        "images": {"repository": REPOSITORY},
    },
    "project": {"build_account": ACCOUNT},
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


@pytest.fixture
def state(cloud: EmptyCloud) -> ProjectState:
    """A project that has what the configuration needs."""
    state = cloud.empty(Lag(operation=2))
    with Client(PROJECT, "us-central1") as client:
        apply(client, survey(client, declare(parse_config(VALUES, where="test"))), lambda _: None)
    return state


@pytest.fixture
def config() -> RunConfig:
    return parse_config(VALUES, where="test")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "context"
    stage_context(find_sources(), folder)
    return folder


def builds(state: ProjectState) -> list[dict[str, Any]]:
    return [resource for name, resource in state.resources.items() if "/builds/" in name]


def test_images_are_built_as_the_account_of_builds_and_recorded(
    state: ProjectState, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_in_cloud, "__kwdefaults__", {"poll_s": 0.0})
    said: list[str] = []
    record = build_images(config, tool="cloud", tensorrt="11.2.1", say=said.append)
    assert all(is_pinned(getattr(record, role)) for role in ROLES)
    assert (tmp_path / f"images-{PROJECT}.json").exists()
    (build,) = builds(state)
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


def test_an_api_that_is_new_is_waited_for(state: ProjectState, config: RunConfig, context: Path) -> None:
    state.enabled["cloudbuild.googleapis.com"] = 2
    said: list[str] = []
    assert set(build_in_cloud(config, context, GIVEN, said.append, poll_s=0)) == set(ROLES)
    assert said[0] == "waiting for Cloud Build"


def test_a_killed_command_goes_on_with_its_build(state: ProjectState, config: RunConfig, context: Path) -> None:
    def kill(text: str) -> None:
        if "working" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_in_cloud(config, context, GIVEN, kill, poll_s=0)
    first = build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    assert len(builds(state)) == 1
    assert build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0) == first
    assert len(builds(state)) == 1
    build_in_cloud(config, context, {**GIVEN, "_TENSORRT": "11.3.0"}, lambda _: None, poll_s=0)
    assert len(builds(state)) == 2


def test_another_machine_s_compressor_makes_no_other_build(
    state: ProjectState, config: RunConfig, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    monkeypatch.setattr(cloud_build, "LEVEL", 1)
    assert build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0) == first
    assert len(builds(state)) == 1
    assert len(storage.list_names(f"gs://{BUCKET}/lines/digits/images")) == 1


def test_where_a_region_is_closed_the_next_open_one_builds(
    state: ProjectState, config: RunConfig, context: Path
) -> None:
    state.closed_build_regions = {"us-central1", "us-west2"}
    said: list[str] = []
    build_in_cloud(config, context, GIVEN, said.append, poll_s=0)
    (build,) = builds(state)
    assert "/locations/europe-west1/" in build["name"]
    assert "the project may not build in us-central1" in said
    fixed = parse_config({**VALUES, "cloud": {**VALUES["cloud"], "images": {"build_region": "us-west2"}}}, where="test")
    assert regions_of(fixed) == ("us-west2",)
    with pytest.raises(ConfigError, match="cannot run builds in this region"):
        build_in_cloud(fixed, context, {**GIVEN, "_TAG": "v2"}, said.append, poll_s=0)


def test_a_build_that_fails_is_told_with_its_log_and_made_again(
    state: ProjectState, config: RunConfig, context: Path
) -> None:
    state.build_failure = "Build step failure: step 1 exited with code 2"
    with pytest.raises(ConfigError, match=r"ended: failure: Build step failure: .*console\.cloud\.google\.com"):
        build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    state.build_failure = "These quota metrics exceed quota limits: cloudbuild.googleapis.com/concurrent_builds"
    with pytest.raises(TryAgain, match="run the same command again"):
        build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)
    state.build_failure = ""
    assert set(build_in_cloud(config, context, GIVEN, lambda _: None, poll_s=0)) == set(ROLES)
    assert len(builds(state)) == 3


def test_without_the_account_or_a_bucket_nothing_is_built(
    state: ProjectState, config: RunConfig, context: Path
) -> None:
    other = parse_config(
        {**VALUES, "project": {"build_account": f"nobody-at-all@{PROJECT}.iam.gserviceaccount.com"}}, where="test"
    )
    with pytest.raises(ConfigError, match="nobody-at-all"):
        build_in_cloud(other, context, GIVEN, lambda _: None, poll_s=0)
    here = parse_config({**VALUES, "run": {"root": "runs"}}, where="test")
    with pytest.raises(ConfigError, match="reads the source from a bucket"):
        build_in_cloud(here, context, GIVEN, lambda _: None, poll_s=0)
    assert not builds(state)


def test_a_folder_is_packed_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = pack(tmp_path)
    (tmp_path / "a" / "x.py").touch()
    assert pack(tmp_path) == first
    (tmp_path / "a" / "x.py").write_text("2")
    assert pack(tmp_path) != first
