"""`shardline rehearse --from-empty`: the five commands of docs/quickstart-vertex.md in a project that has nothing.

init, project plan, project apply, submit (which uploads the data and builds the images) and submit --wait run as
processes of their own, as a user types them; then what happened is compared with what they promise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.stage import new_attempt_id
from pipelines.rehearse.commands import ask_why, environment_of, led_to, play, signals_end
from pipelines.rehearse.config import PROJECT, ROOT, Prepared
from pipelines.rehearse.rehearse import Wanted, make_bare_cloud, make_empty_project, require_new
from pipelines.rehearse.rehearsed import Rehearsed, leave_evidence, look
from pipelines.reported import load

if TYPE_CHECKING:
    from rehearsal.projects.state import ProjectState

_MISSING = "missing  "


@dataclass(frozen=True)
class Beginning:
    """Where a user begins."""

    config: Path | None
    """What `shardline init` has written; None: it is played too."""
    overrides: Sequence[str]
    source: Path | None
    """Local data; None: sharding.source is."""
    without_role: str = ""
    """Role that the accounts lose after `project apply`; "": none."""


def rehearse_from_empty(given: Beginning, folder: Path, wanted: Wanted) -> Rehearsed:
    """Play the five commands.

    Args:
        given: Where they begin.
        folder: For everything that is written; new or empty.
        wanted: How machines are played; nothing can be disturbed.

    Raises:
        ConfigError: An option that does not go with it, no local data, a role that no account gets, or nothing that a
            project could be made from.
    """
    _check(given, wanted)
    require_new(folder)
    # Beside the configuration it would be the user's own.
    overrides = [*given.overrides, f"cloud.images.file={folder / 'images.json'}"]
    if given.source and given.config:
        overrides.append(f"sharding.source={given.source}")
    state = make_empty_project(PROJECT if given.config is None else _read(given.config, overrides, given).cloud.project)
    cloud = make_bare_cloud(folder, wanted, state)
    began, run_id, told = time.monotonic(), f"rehearsal-{new_attempt_id()}", Told([], [])
    with signals_end(), cloud, led_to(environment_of(cloud, folder)):
        path, code = given.config or folder / "line.yaml", 0
        if given.config is None:
            bucket = ROOT.removeprefix("gs://").partition("/")[0]
            names = (f"--project={PROJECT}", f"--bucket={bucket}", f"--source={given.source}")
            code, _ = play("init", *names, f"--output={path}")
            if not code:
                _read(path, overrides, given)
        code = code or _set_up(path, overrides, state, given.without_role, told)
        # The second asks nothing: it has no --yes, and there is no terminal to ask on.
        for last in ("--yes", "--wait"):
            code = code or play("submit", path, *overrides, f"--run-id={run_id}", last)[0]
        found = look(cloud, Prepared(_read(path, overrides, given)), run_id, code)
        found.set_up, found.unmet = told.done, told.unmet
        if code:
            found.ended_by = ask_why(path, found.run_id)
        if given.without_role:
            _judge(found, path, overrides, given.without_role)
        found.wall_s = time.monotonic() - began
        leave_evidence(cloud)
    return found


@dataclass(frozen=True)
class Told:
    """What the commands that set a project up have done, and what they should have and did not, in words."""

    done: list[str]
    unmet: list[str]


def _set_up(path: Path, overrides: Sequence[str], state: ProjectState, without_role: str, told: Told) -> int:
    """Play project plan and apply; return the exit code of what failed."""
    _, listed = play("project", "plan", path, *overrides)
    missing = _missing(listed)
    code, _ = play("project", "apply", path, *overrides, "--yes")
    if code:
        return code
    _, again = play("project", "apply", path, *overrides)
    if again != "unchanged\n":
        told.unmet.append(f"the second `project apply` found something to do: {again.strip()}")
    kinds = [key.partition(" ")[0] for key in missing]
    counts = ", ".join(f"{kinds.count(kind)} {kind}{'s' * (kinds.count(kind) > 1)}" for kind in dict.fromkeys(kinds))
    told.done.append(f"{len(missing)} missing things named and made: {counts or 'none'}")
    if without_role:
        for policy in state.policies.values():
            policy.bindings = [binding for binding in policy.bindings if binding["role"] != without_role]
        told.done.append(f"then {without_role} taken away")
    return 0


def _judge(found: Rehearsed, path: Path, overrides: Sequence[str], role: str) -> None:
    """Say whether a role that was taken away was missed, by name."""
    if not found.exit_code:
        found.idle.append(f"--without-role {role}")
    elif role not in found.ended_by:
        found.unmet.append(f"the run's failure does not name {role}")
    _, listed = play("project", "plan", path, *overrides)
    if not any(key.startswith(f"grant {role} ") for key in _missing(listed)):
        found.unmet.append(f"`project plan` does not name {role}")


def _missing(listed: str) -> list[str]:
    return [line.removeprefix(_MISSING).partition(": ")[0] for line in listed.splitlines() if line.startswith(_MISSING)]


def _read(path: Path, overrides: Sequence[str], given: Beginning) -> RunConfig:
    """Return the configuration.

    Raises:
        ConfigError: It has no local data, or no project can be declared from it.
    """
    from pipelines.project.declaration import declare

    config = load(path, list(overrides))
    roles = dict.fromkeys(grant.role for grant in declare(config).grants)
    if given.without_role and given.without_role not in roles:
        raise ConfigError(
            f"--without-role {given.without_role}",
            allowed=", ".join(roles),
            todo="name a role that `shardline project plan` lists",
        )
    if "://" in config.sharding.source:
        raise ConfigError(
            f"--from-empty with sharding.source {config.sharding.source}: the bucket is not there yet",
            allowed="data of this machine, which `submit` uploads",
            todo="give --source PATH",
        )
    return config


def _check(given: Beginning, wanted: Wanted) -> None:
    kept = ("time_scale", "seed", "processes_per_node", "restarts", "network")
    if wanted != Wanted(**{name: getattr(wanted, name) for name in kept}):
        raise ConfigError(
            "--from-empty with an option that disturbs a run",
            allowed="--source, --without-role, --restarts, --network, --time-scale, --seed, --processes, --keep",
            todo="leave the others out; `shardline rehearse CONFIG` has them",
        )
    if given.config is None and given.source is None:
        raise ConfigError(
            "--from-empty without data",
            allowed="--source PATH, or a configuration (`shardline init`) whose source is on this machine",
            todo="python examples/digits.py raw/digits writes some: --source raw/digits",
        )
    if given.source is not None and not given.source.exists():
        raise ConfigError(
            f"--source {given.source} is not there",
            allowed="a folder or a table on this machine",
            todo="correct the path; python examples/digits.py raw/digits writes some data",
        )
