"""`project plan`: what of a declaration is there, what is missing, and what differs. Only reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

from pipelines.project import kinds
from pipelines.project.client import Client, Refused
from pipelines.project.declaration import LABELS, Declaration, Grant, Resource
from pipelines.project.made import Made, read_made
from pipelines.project.policies import find_granted, group_by_resource

_Found = TypeVar("_Found")
State = Literal["there", "missing", "differs"]
# Services.batchGet takes 30 names.
_MAX_NAMES = 30


@dataclass(frozen=True)
class Item:
    """One API, resource or grant, and its state."""

    key: str
    state: State
    reason: str
    cost: str = ""
    note: str = ""


@dataclass
class Survey:
    """A project beside its declaration."""

    declaration: Declaration
    missing_apis: list[str] = field(default_factory=list)
    found: dict[Resource, dict[str, Any] | None] = field(default_factory=dict)
    """None: it is missing."""
    granted: set[Grant] = field(default_factory=set)
    made: Made = field(default_factory=Made)

    @property
    def missing(self) -> list[Resource]:
        """Resources that are not there."""
        return [resource for resource, found in self.found.items() if found is None]

    @property
    def missing_grants(self) -> list[Grant]:
        """Grants that no policy has."""
        return [grant for grant in self.declaration.grants if grant not in self.granted]

    def is_made(self, resource: Resource) -> bool:
        """Whether `project apply` has made a resource: the record says so; of the bucket, its label."""
        if resource.kind == "bucket":
            found = self.found.get(resource) or {}
            return LABELS.items() <= (found.get("labels") or {}).items()
        return resource.key in self.made.keys

    def differing(self) -> list[tuple[Resource, list[str]]]:
        """Return resources whose values are others than declared, with the keys."""
        pairs = [(resource, kinds.find_differences(resource, found)) for resource, found in self.found.items() if found]
        return [(resource, keys) for resource, keys in pairs if keys]

    def items(self) -> list[Item]:
        """Return everything that is declared, with its state."""
        items = [
            Item(f"API {api}", "missing" if api in self.missing_apis else "there", reason)
            for api, reason in self.declaration.apis.items()
        ]
        differing = dict(self.differing())
        for resource, found in self.found.items():
            state: State = "missing" if found is None else "differs" if resource in differing else "there"
            note = ""
            if resource in differing:
                changes = (
                    "apply sets it" if self.is_made(resource) else "not made by `project apply`, which leaves it so"
                )
                note = f"{', '.join(differing[resource])}: {changes}"
            items.append(Item(resource.key, state, resource.reason, resource.cost if found is None else "", note))
        for grant in self.declaration.grants:
            items.append(Item(grant.key, "there" if grant in self.granted else "missing", grant.reason))
        return items

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left for `project apply`."""
        ours = [resource for resource, _ in self.differing() if self.is_made(resource)]
        return not (self.missing_apis or self.missing or self.missing_grants or ours)


def survey(client: Client, declaration: Declaration) -> Survey:
    """Look at a project.

    Raises:
        ConfigError: It is not there, or may not be looked at.
    """
    found = Survey(declaration, find_missing_apis(client, declaration))
    for resource in declaration.resources:
        found.found[resource] = _look(client, found, resource.key, partial(kinds.find, client, resource))
    bucket = declaration.resources[0]
    if found.found[bucket] is not None:
        found.made = read_made(client, bucket.name)
    for grants in group_by_resource(declaration.grants):
        what = f"the policy of {grants[0].resource}"
        found.granted |= _look(client, found, what, partial(find_granted, client, grants)) or set()
    return found


def find_missing_apis(client: Client, declaration: Declaration) -> list[str]:
    """Return the declared APIs that are not enabled."""
    names = [f"projects/{client.project}/services/{api}" for api in declaration.apis]
    enabled: set[str] = set()
    for start in range(0, len(names), _MAX_NAMES):
        some = names[start : start + _MAX_NAMES]
        answer = client.call("serviceusage", "services.batchGet", parent=f"projects/{client.project}", names=some)
        services = answer.get("services", [])
        enabled |= {item["name"].rpartition("/")[2] for item in services if item.get("state") == "ENABLED"}
    return [api for api in declaration.apis if api not in enabled]


def _look(client: Client, found: Survey, what: str, look: Callable[[], _Found]) -> _Found | None:
    """Return what a look finds.

    Where APIs are missing, one that refuses is one of those, and nothing of it can be there: None. Else it was enabled
    lately, and is waited for.
    """
    if not found.missing_apis:
        return cast("_Found", client.wait(what, lambda: (look(),))[0])
    try:
        return look()
    except Refused as error:
        if error.is_disabled:
            return None
        raise
