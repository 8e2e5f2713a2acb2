"""What a project has, as the APIs that set it up see it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# An API that was never asked for; every project answers for it.
ALWAYS_ENABLED = frozenset({"serviceusage.googleapis.com", "storage.googleapis.com"})


@dataclass
class Lag:
    """How long changes take, counted in requests: nothing here waits for a clock."""

    new_api: int = 0
    """Requests that a newly enabled API refuses still."""
    new_account: int = 0
    """Policies that refuse a new account as a member, still."""
    conflicts: int = 0
    """Writes of each policy that lose against another writer, who adds a binding of its own."""
    operation: int = 0
    """Looks at an operation until it is done."""


@dataclass
class Policy:
    """An IAM policy."""

    bindings: list[dict[str, Any]] = field(default_factory=list)
    generation: int = 1
    conflicts_left: int = 0

    @property
    def etag(self) -> str:
        """A text that changes with every write."""
        return f"BwY{self.generation:06d}="


@dataclass
class ProjectState:
    """One project's set-up.

    Args:
        project: Id.
        number: Its number.
        empty: No API is enabled, and there is no network; else every API is, and the network `default` is there.
        lag: How long changes take.
        billing_account: Who pays; "": nobody.
        has_default_network: See below.
        roles: Role -> its permissions; None: service accounts may do everything.
    """

    project: str
    number: str
    empty: bool = False
    lag: Lag = field(default_factory=Lag)
    billing_account: str = "billingAccounts/000000-AAAAAA-000000"
    has_default_network: bool = True
    """Whether Compute Engine makes the network `default` when it is enabled; organisations can forbid it."""
    roles: Mapping[str, frozenset[str]] | None = None
    enabled: dict[str, int] = field(default_factory=dict)
    """API -> requests that it refuses still."""
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Full name -> resource."""
    policies: dict[str, Policy] = field(default_factory=dict)
    new_accounts: dict[str, int] = field(default_factory=dict)
    """Address -> policies that refuse it still."""
    operations: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """Name -> looks until it is done, and its result."""
    closed_build_regions: set[str] = field(default_factory=set)
    """Regions in which Cloud Build refuses this project."""
    build_failure: str = ""
    """What builds fail with; empty: they succeed."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if not self.empty:
            self._add_default_network()

    def _add_default_network(self) -> None:
        if self.has_default_network:
            self.resources[f"projects/{self.project}/global/networks/default"] = {"name": "default"}

    def enable(self, apis: Iterable[str]) -> None:
        """Enable APIs; those that are enabled stay as they are."""
        for api in apis:
            if api == "compute.googleapis.com" and api not in self.enabled:
                self._add_default_network()
            self.enabled.setdefault(api, self.lag.new_api)

    def is_enabled(self, api: str) -> bool:
        """Whether an API is enabled, by Service Usage."""
        return not self.empty or api in self.enabled or api in ALWAYS_ENABLED

    def answers(self, api: str) -> bool:
        """Whether an API answers; each refusal brings a new one nearer to it."""
        if not self.is_enabled(api):
            return False
        left = self.enabled.get(api, 0)
        if left:
            self.enabled[api] = left - 1
        return not left

    def permits(self, principal: str, permission: str, places: Iterable[str]) -> bool:
        """Whether a role that a policy grants to a service account holds a permission.

        Args:
            principal: Mail address of the account.
            permission: As in dataflow.jobs.create.
            places: Resources beside the project whose policies count: buckets/NAME, serviceAccounts/ADDRESS.
        """
        if self.roles is None:
            return True
        project, member = f"projects/{self.project}", f"serviceAccount:{principal}"
        names = [project, *places, *(f"{project}/{place}" for place in places)]
        bindings = [binding for name in names if name in self.policies for binding in self.policies[name].bindings]
        return any(
            member in binding["members"] and permission in self.roles.get(binding["role"], ()) for binding in bindings
        )

    def policy(self, name: str) -> Policy:
        """Return the policy of a resource."""
        return self.policies.setdefault(name, Policy(conflicts_left=self.lag.conflicts))

    def begin(self, name: str, result: Mapping[str, Any]) -> str:
        """Begin an operation, and return its name."""
        self.operations[name] = (self.lag.operation, dict(result))
        return name

    def look_at(self, name: str) -> tuple[bool, Any] | None:
        """Return whether an operation is done, and its result; None where there is no such operation."""
        if name not in self.operations:
            return None
        left, result = self.operations[name]
        self.operations[name] = (max(0, left - 1), result)
        return not left, result
