"""Compiled pipelines as files: on this machine, in a bucket, and in a KFP repository of Artifact Registry.

A version in the repository is tagged with the hash of the spec's canonical form: the same spec is uploaded once.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from contracts import storage
from contracts.canonical import canonical, canonical_hash
from contracts.errors import ConfigError, TryAgain
from pipelines.google import CALL_TIMEOUT_S, explained, http_session

# https://REGION-kfp.pkg.dev/PROJECT/REPOSITORY[/PACKAGE/VERSION_OR_TAG]
_REGISTRY = re.compile(r"https://[\w-]+-kfp\.pkg\.dev/[^/]+/[^/]+")
_IN_REGISTRY = re.compile(_REGISTRY.pattern + r"/[^/]+/[^/]+")
_TAG = re.compile(r"[a-z0-9][a-z0-9-]{0,126}")
_HASH_DIGITS = 16

T = TypeVar("T")


def read_template(uri: str) -> dict[str, Any]:
    """Return the spec of a compiled pipeline.

    Args:
        uri: A file's path, gs://, or https://REGION-kfp.pkg.dev/PROJECT/REPOSITORY/PACKAGE/VERSION_OR_TAG.

    Raises:
        ConfigError: It is not there, or no compiled pipeline.
    """
    if uri.startswith("http"):
        content = _download(uri)
    else:
        try:
            content = storage.read_bytes(storage.normalise(uri))
        except (FileNotFoundError, IsADirectoryError):
            raise ConfigError(
                f"--template {uri} is not there",
                allowed="what `shardline compile --output` wrote, gs://, or a template in Artifact Registry",
                todo="check the path",
            ) from None
    try:
        # C's loader where it is built in: a spec is long, and Python's takes seconds.
        found = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise _no_pipeline(uri, " ".join(str(error).split())) from None
    if isinstance(found, dict) and isinstance(found.get("pipelineSpec"), dict):
        found = found["pipelineSpec"]
    if not isinstance(found, dict) or not {"root", "pipelineInfo", "schemaVersion"} <= set(found):
        raise _no_pipeline(uri, "it has no root, pipelineInfo and schemaVersion")
    result: dict[str, Any] = canonical(found)
    return result


def is_in_registry(uri: str) -> bool:
    """Whether a template lies in Artifact Registry."""
    return _IN_REGISTRY.fullmatch(uri) is not None


def write_template(spec: dict[str, Any], path: Path) -> None:
    """Write a spec as YAML, as the registry takes it."""
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    path.write_text(yaml.dump(canonical(spec), Dumper=dumper, sort_keys=True), encoding="utf-8")


def upload(spec: dict[str, Any], *, registry: str, tags: Sequence[str] = ()) -> str:
    """Put a spec into a KFP repository, unless it is there, and return its URI by version.

    Args:
        spec: The compiled pipeline.
        registry: https://REGION-kfp.pkg.dev/PROJECT/REPOSITORY.
        tags: Tags that move to this version.

    Raises:
        ConfigError: The repository or a tag cannot be used.
        TryAgain: No answer.
    """
    _check(registry, tags)
    own_tag = f"spec-{canonical_hash(spec)[:_HASH_DIGITS]}"
    package = str(spec["pipelineInfo"]["name"])
    with explained(f"the repository {registry}"):
        from kfp.registry import RegistryClient

        client = _within(lambda: RegistryClient(host=registry))
        version = _find_version(client, package, own_tag)
        if version is None:
            with tempfile.TemporaryDirectory(prefix="shardline-") as folder:
                path = Path(folder) / "pipeline.yaml"
                write_template(spec, path)
                package, version = _within(lambda: client.upload_pipeline(str(path), tags=[own_tag, *tags]))
        else:
            known, there = version, package
            for tag in tags:
                _move_tag(client, there, tag, known)
    return f"{registry.rstrip('/')}/{package}/{version}"


def _find_version(client: Any, package: str, tag: str) -> str | None:
    """Return the version that has a tag; None: there is no such tag, or no such package."""
    from requests.exceptions import HTTPError  # type: ignore[import-untyped]

    try:
        found = _within(lambda: client.get_tag(package, tag))
    except HTTPError as error:
        if error.response is not None and error.response.status_code == 404:
            return None
        raise
    return str(found["version"]).rpartition("/")[2]


def _move_tag(client: Any, package: str, tag: str, version: str) -> None:
    there = _find_version(client, package, tag)
    if there is None:
        _within(lambda: client.create_tag(package, version, tag))
    elif there != version:
        _within(lambda: client.update_tag(package, version, tag))


def _download(uri: str) -> bytes:
    if not is_in_registry(uri):
        raise ConfigError(
            f"--template {uri}",
            allowed="https://REGION-kfp.pkg.dev/PROJECT/REPOSITORY/PACKAGE/VERSION_OR_TAG, gs://, or a file",
            todo="name a version (sha256:...) or a tag",
        )
    with explained(f"template {uri}"):
        response = http_session().get(uri, timeout=CALL_TIMEOUT_S)
        response.raise_for_status()
        return bytes(response.content)


def _check(registry: str, tags: Sequence[str]) -> None:
    if not _REGISTRY.fullmatch(registry.rstrip("/")):
        raise ConfigError(
            f"vertex.registry = {registry}",
            allowed="https://REGION-kfp.pkg.dev/PROJECT/REPOSITORY",
            todo="make one: gcloud artifacts repositories create REPOSITORY --repository-format=kfp --location=REGION",
        )
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ConfigError(f"--tag {tag}", allowed="lower-case letters, digits and '-'", todo="choose another tag")


def _no_pipeline(uri: str, why: str) -> ConfigError:
    return ConfigError(
        f"--template {uri} is no compiled pipeline ({why})",
        allowed="what `shardline compile --output` writes",
        todo="compile it again",
    )


def _within(call: Callable[[], T]) -> T:
    """Return what `call` returns; the registry's client has no timeout of its own.

    Raises:
        TryAgain: It took longer than any call may.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            failure.append(error)

    # A daemon: a call that never ends must not keep the process.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(CALL_TIMEOUT_S)
    if failure:
        raise failure[0]
    if not outcome:
        raise TryAgain(f"the repository does not answer within {CALL_TIMEOUT_S:g} s\n  to do: run the command again")
    return outcome[0]
