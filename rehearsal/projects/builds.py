"""Cloud Build as the set-up of a project sees it: builds are checked and "built" by naming digests, never run.

A build ends by looks, as operations do. What it proves: the request, the account that builds, variables, the region.
Not that a Dockerfile builds, that an image starts, or that the account has the roles that it needs.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Any

from rehearsal.doors.errors import ServiceError, not_found

if TYPE_CHECKING:
    from rehearsal.projects.methods import Call

_TAG = re.compile(r'tags="([^"]+)"')


def create_build(call: Call) -> dict[str, Any]:
    """Begin a build: https://docs.cloud.google.com/build/docs/api/reference/rest/v1/projects.locations.builds/create."""
    region = call.name.split("/")[3]
    body = call.body
    if not body.get("steps") or not body.get("source", {}).get("storageSource", {}).get("object"):
        raise ServiceError("INVALID_ARGUMENT", "invalid build: it needs steps and a source")
    if region in call.state.closed_build_regions:
        raise ServiceError("FAILED_PRECONDITION", "due to quota restrictions, cannot run builds in this region")
    if account := body.get("serviceAccount"):
        if body.get("options", {}).get("logging") != "CLOUD_LOGGING_ONLY" and not body.get("logsBucket"):
            raise ServiceError(
                "INVALID_ARGUMENT",
                "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) "
                "use the REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use "
                "either CLOUD_LOGGING_ONLY / NONE logging options",
            )
        if account not in call.state.resources:
            raise not_found(account)
    used = set(re.findall(r"\$\{(_[A-Z_]+)\}", str([body["steps"], body.get("images", [])])))
    if missing := used - set(body.get("substitutions", {})):
        raise ServiceError(
            "INVALID_ARGUMENT", f"key in the template {sorted(missing)[0]!r} is not a valid substitution"
        )
    name = f"{call.name}/{secrets.token_hex(16)}"
    call.state.resources[name] = {
        **body,
        "name": name,
        "id": name.rpartition("/")[2],
        "status": "QUEUED",
        "logUrl": f"https://console.cloud.google.com/cloud-build/builds;region={region}/{name.rpartition('/')[2]}",
    }
    call.state.begin(name, {})
    return {"name": f"operations/build/{call.state.project}/x", "metadata": {"build": call.state.resources[name]}}


def get_build(call: Call) -> dict[str, Any]:
    """Return a build; with each look it comes nearer to its end."""
    if call.name not in call.state.resources:
        raise not_found(call.name)
    build = call.state.resources[call.name]
    found = call.state.look_at(call.name)
    if build["status"] in ("QUEUED", "WORKING") and found is not None:
        failure = call.state.build_failure
        build["status"] = ("FAILURE" if failure else "SUCCESS") if found[0] else "WORKING"
        for step in build["steps"]:
            step["status"] = build["status"]
        if found[0] and failure:
            build["failureInfo"] = {"type": "USER_BUILD_STEP", "detail": failure}
        elif found[0]:
            build["results"] = {"images": [{"name": one, "digest": _digest(build, one)} for one in _images(build)]}
    return build


def list_builds(call: Call) -> dict[str, Any]:
    """Return the builds of a region that have a tag."""
    match = _TAG.fullmatch(call.query.get("filter", ""))
    found = [resource for name, resource in call.state.resources.items() if name.rpartition("/")[0] == call.name]
    return {"builds": [build for build in found if match is None or match.group(1) in build.get("tags", [])]}


def _images(build: dict[str, Any]) -> list[str]:
    names = []
    for name in build.get("images", []):
        for key, value in build.get("substitutions", {}).items():
            name = name.replace(f"${{{key}}}", value)
        names.append(name)
    return names


def _digest(build: dict[str, Any], image: str) -> str:
    decides = f"{build['source']['storageSource']['object']} {image}"
    return f"sha256:{hashlib.sha256(decides.encode()).hexdigest()}"
