"""Builds of images in Cloud Build, by its REST API: the source lies in the line's folder of the bucket.

A build has a tag made from all that decides it. So a command that was killed goes on with the build that it began, and
one that succeeded is not made again. Where the project may not build in a region, the few are tried that new projects
may build in.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import EXIT_TRY_AGAIN, ConfigError, ShardlineError, TryAgain
from pipelines.images.client import Client, Refused
from pipelines.images.record import ROLES
from pipelines.runs.diagnosis import Said, diagnose

BUILD_FILE = "docker/cloudbuild.yaml"
# https://docs.cloud.google.com/build/docs/locations: those that projects with restricted quotas may build in (from
# memory, not read on that page: unverified).
OPEN_REGIONS = ("us-central1", "us-west2", "europe-west1", "asia-east1", "australia-southeast1", "southamerica-east1")
# No build is meant to take longer; cloudbuild.yaml bounds it by itself.
LIMIT_S = 4 * 3600.0
POLL_S = 10.0
LEVEL = 9
"""Of gzip's compression."""
_NEW_API_S = 180.0
IMAGES_FOLDER = "images"
_ENDED = ("SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")
_AGAIN = ("INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")


@dataclass(frozen=True)
class Source:
    """What is built, as a file in the bucket."""

    uri: str
    tag: str
    """Of the build; made from the source and what is said beside it."""


def build_in_cloud(
    config: RunConfig,
    context: Path,
    substitutions: Mapping[str, str],
    say: Callable[[str], None],
    *,
    poll_s: float = POLL_S,
) -> dict[str, str]:
    """Build and push all images, and return their digests by role.

    Args:
        config: Names project, region, bucket and the account that builds.
        context: Folder with what is built, and with the build file.
        substitutions: Values of the build file's variables.
        say: Told of the progress.
        poll_s: Seconds between two looks.

    Raises:
        ConfigError: It cannot work so: no bucket, a permission, no region, the build's own failure.
        TryAgain: A quota, no answer, or the build has not ended in time.
    """
    if not config.run.root.startswith("gs://"):
        raise ConfigError(
            f"run.root = {config.run.root}: Cloud Build reads the source from a bucket",
            allowed="gs://BUCKET/FOLDER",
            todo="set run.root, or build here: --with docker",
        )
    source = publish_source(config, context, substitutions)
    body = make_build(config, context, substitutions, source)
    with Client(config.cloud.project, limit_s=_NEW_API_S, say=say) as client:
        try:
            # The first request: an API that was just enabled refuses for a while.
            (found,) = client.wait("Cloud Build", lambda: (find_build(client, config, source.tag),))
            name = found or _create(client, config, body, say)
            build = _follow(client, name, say, poll_s)
        except Refused as error:
            raise error.error from error
    return _digests(build, substitutions["_REPOSITORY"])


def publish_source(config: RunConfig, context: Path, substitutions: Mapping[str, str]) -> Source:
    """Write what is built into the line's folder, under the hash of the tar file, unless it is there.

    Not under the hash of what is written: gzip's output differs between versions of zlib, and so between machines.
    """
    content = pack(context)
    digest = hashlib.sha256(content).hexdigest()
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    uri = storage.join(line, IMAGES_FOLDER, f"{digest}.tgz")
    if not storage.exists(uri):
        # Where another machine was faster, it holds the same files.
        with contextlib.suppress(storage.AlreadyPublished):
            storage.publish(uri, gzip.compress(content, LEVEL, mtime=0))
    decides = json.dumps([digest, dict(substitutions), config.cloud.images.build_account], sort_keys=True)
    return Source(uri, f"shardline-{hashlib.sha256(decides.encode()).hexdigest()[:32]}")


def pack(folder: Path) -> bytes:
    """Return a folder as a tar file: a pure function of paths, contents and permissions to execute."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size, entry.mode = path.stat().st_size, 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
    return tar.getvalue()


def make_build(config: RunConfig, context: Path, substitutions: Mapping[str, str], source: Source) -> dict[str, Any]:
    """Return the build as Cloud Build's API takes it.

    https://docs.cloud.google.com/build/docs/api/reference/rest/v1/projects.locations.builds: an account of one's own
    needs logging in Cloud Logging alone, or a bucket for logs.
    """
    body: dict[str, Any] = yaml.safe_load((context / BUILD_FILE).read_text(encoding="utf-8"))
    bucket, _, path = source.uri.removeprefix("gs://").partition("/")
    body["source"] = {"storageSource": {"bucket": bucket, "object": path}}
    body["substitutions"] = dict(substitutions)
    body["tags"] = [source.tag]
    if account := config.cloud.images.build_account:
        body["serviceAccount"] = f"projects/{config.cloud.project}/serviceAccounts/{account}"
    return body


def regions_of(config: RunConfig) -> tuple[str, ...]:
    """Return the regions to try: that of the jobs, then those of its continent first."""
    own = config.cloud.region
    near = own.partition("-")[0]
    return tuple(dict.fromkeys([own, *sorted(OPEN_REGIONS, key=lambda region: region.partition("-")[0] != near)]))


def find_build(client: Client, config: RunConfig, tag: str) -> str | None:
    """Return the name of a build of this tag that is at work or has succeeded."""
    for region in regions_of(config):
        parent = f"projects/{config.cloud.project}/locations/{region}"
        found = client.call("list", parent=parent, filter=f'tags="{tag}"', pageSize=20)
        for build in found.get("builds", []):
            if build["status"] == "SUCCESS" or build["status"] not in _ENDED:
                return str(build["name"])
    return None


def _create(client: Client, config: RunConfig, body: dict[str, Any], say: Callable[[str], None]) -> str:
    regions = regions_of(config)
    for region in regions:
        parent = f"projects/{config.cloud.project}/locations/{region}"
        try:
            begun = client.call("create", write=True, parent=parent, body=body)
        except Refused as error:
            if "cannot run builds in this region" not in error.text or region == regions[-1]:
                raise
            say(f"the project may not build in {region}")
            continue
        build = begun["metadata"]["build"]
        say(f"Cloud Build builds in {region}: {build.get('logUrl', build['name'])}")
        return str(build["name"])
    raise AssertionError("there is a last region")


def _follow(client: Client, name: str, say: Callable[[str], None], poll_s: float) -> dict[str, Any]:
    """Return a build that has succeeded."""
    deadline, last = time.monotonic() + LIMIT_S, ""
    while True:
        build = client.call("get", name=name)
        told = ", ".join(_progress(build)) or build["status"].lower()
        if told != last:
            say(told)
            last = told
        if build["status"] in _ENDED:
            break
        if time.monotonic() > deadline:
            raise TryAgain(
                f"build {name} has not ended after {LIMIT_S:g} s\n  to do: run the same command again, which goes on"
            )
        time.sleep(poll_s)
    if build["status"] == "SUCCESS":
        return build
    said = " ".join(filter(None, (build.get("statusDetail", ""), build.get("failureInfo", {}).get("detail", ""))))
    given = f"build {name} ended: {build['status'].lower()}: {said}; its log: {build.get('logUrl', 'in the console')}"
    found = diagnose([Said(said)])
    if build["status"] in _AGAIN or found.exit_code == EXIT_TRY_AGAIN:
        raise TryAgain(f"{given}\n  to do: run the same command again")
    raise ConfigError(given, allowed="a build that succeeds", todo="read the log, or build here: --with docker")


def _progress(build: Mapping[str, Any]) -> Iterator[str]:
    """Yield the state of each step that has begun."""
    for step in build.get("steps", []):
        if step.get("status"):
            yield f"{step['id']} {step['status'].lower()}"


def _digests(build: Mapping[str, Any], repository: str) -> dict[str, str]:
    images = build.get("results", {}).get("images", [])
    named = {image["name"].rpartition(":")[0]: image["digest"] for image in images}
    try:
        return {role: named[f"{repository}/{role}"] for role in ROLES}
    except KeyError as error:
        raise ShardlineError(f"build {build['name']} names no digest of {error}") from error
