"""`project destroy`: take away what `project apply` has made, and nothing else.

APIs stay enabled: others of the project may use them, and they cost nothing. A bucket that holds anything stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelines.project import kinds
from pipelines.project.client import Client
from pipelines.project.declaration import Grant, Resource
from pipelines.project.inspect import Survey
from pipelines.project.made import NAME, delete_made, write_made
from pipelines.project.policies import group_by_resource, write_grants


@dataclass(frozen=True)
class Removal:
    """What would be taken away."""

    grants: tuple[Grant, ...]
    resources: tuple[Resource, ...]
    """In the order in which they can go; the bucket is not among them."""
    bucket: Resource | None
    """None: it is not ours, or holds more than the record."""
    kept: tuple[str, ...]
    """What is left, with the reason."""
    left: frozenset[str]
    """Keys that the record keeps: of other configurations."""

    @property
    def keys(self) -> list[str]:
        """What is taken away, in order."""
        resources = [*self.resources, *([self.bucket] if self.bucket else [])]
        return [grant.key for grant in self.grants] + [resource.key for resource in resources]


def list_removal(client: Client, found: Survey) -> Removal:
    """Return what of a declaration is ours and there."""
    ours = [resource for resource in found.declaration.resources[1:] if found.found[resource] is not None]
    kept = [f"{resource.key}: not made by `project apply`" for resource in ours if not found.is_made(resource)]
    granted = [grant for grant in found.declaration.grants if grant in found.granted]
    grants = tuple(grant for grant in granted if grant.key in found.made.keys)
    resources = tuple(resource for resource in reversed(ours) if found.is_made(resource))
    left = _left(found, grants, resources)
    bucket = found.declaration.resources[0]
    removed: Resource | None = None
    if found.found[bucket] is not None:
        page = client.call("storage", "objects.list", bucket=bucket.name, maxResults=2)
        others = [item["name"] for item in page.get("items", []) if item["name"] != NAME]
        if not found.is_made(bucket):
            kept.append(f"{bucket.key}: not made by `project apply`")
        elif others:
            kept.append(f"{bucket.key}: it holds objects, such as {others[0]}; delete them yourself first")
        elif left:
            kept.append(
                f"{bucket.key}: other configurations have made {', '.join(sorted(left)[:3])}; destroy those first"
            )
        else:
            removed = bucket
    return Removal(grants, resources, removed, (*kept, "APIs: they stay enabled"), left)


def destroy(client: Client, found: Survey, removal: Removal, say: Callable[[str], None]) -> None:
    """Take away what a removal lists; the record goes last, so that a killed command can be run again."""
    for grants in group_by_resource(removal.grants):
        for grant in grants:
            say(f"removes {grant.key}")
        write_grants(client, grants, present=False)
    for resource in removal.resources:
        say(f"removes {resource.key}")
        kinds.delete(client, resource)
    bucket = found.declaration.resources[0]
    if removal.bucket is not None:
        say(f"removes {bucket.key}")
        delete_made(client, bucket.name)
        kinds.delete(client, bucket)
    elif removal.left != found.made.keys:
        write_made(client, bucket.name, found.made, removal.left)


def _left(found: Survey, grants: tuple[Grant, ...], resources: tuple[Resource, ...]) -> frozenset[str]:
    gone = {resource.key for resource in (*resources, *found.missing)}
    return found.made.keys - gone - {grant.key for grant in (*grants, *found.missing_grants)}
