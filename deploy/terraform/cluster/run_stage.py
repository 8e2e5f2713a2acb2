"""Runs a stage on one machine of a managed instance group, and ends the group: a systemd unit (startup.sh).

The command comes from the machine's metadata and gets the variables by which machines find each other (docs/launch.md).

    exit code 0             the first machine resizes the group to 0
    2, 70, 1                so does it: the same command would fail again; another machine waits five minutes for it
    75                      the command starts again; a preempted machine is made again by its group
    125                     the container did not start: again each minute, for an hour
    any other               it starts again, at most five times in a row within ten minutes each

Past the deadline every machine resizes the group to 0, also one that was just made: a group whose machines switch
themselves off would make them again, and pay for ever.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE, USER_ERROR, FAULT, CHECK_FAILED, TRY_AGAIN = 0, 2, 70, 1, 75
NOT_STARTED = 125
"""Of `docker run`: no image yet, no permission yet, a registry that does not answer."""
FINAL = (DONE, USER_ERROR, FAULT, CHECK_FAILED)
CRASHES, CRASH_S = 5, 600.0
STARTS, START_S = 60, 60.0
STOP_S = 30.0
"""A stage has so long to end after the deadline."""
PATIENCE_S = 300.0
"""A machine beside the first waits so long for it to end the group."""
PORT = 29500
METADATA = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}/computeMetadata/v1/"
COMPUTE = os.environ.get("COMPUTE_ENDPOINT", "https://compute.googleapis.com")


@dataclass(frozen=True)
class Member:
    """This machine among those of its group."""

    project: str
    zone: str
    group: str
    nodes: int
    index: int
    """From its name, GROUP-INDEX."""
    command: list[str]
    """Of the stage, in its container."""
    image: str
    env: dict[str, str]
    """Further variables of the stage."""
    deadline: float
    """Seconds since the epoch."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the stage, those by which the launcher finds the other machines among them."""
        # The group's name is used again: what ended an earlier job of it must not end this one.
        variables = {**self.env, "SHARDLINE_JOB_ID": f"{self.group}-{self.deadline:.0f}"}
        if self.nodes > 1:
            variables |= {"PET_NNODES": str(self.nodes), "PET_NODE_RANK": str(self.index)}
            variables |= {"PET_MASTER_ADDR": f"{self.group}-0", "PET_MASTER_PORT": str(PORT)}
        return variables


def read_metadata(path: str) -> str:
    """Return a value of the metadata server.

    Raises:
        OSError: It does not answer, or has no such value.
    """
    request = urllib.request.Request(METADATA + path, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.read().decode())


def read_member() -> Member:
    """Return this machine, by its metadata."""
    job = json.loads(read_metadata("instance/attributes/stage"))
    return Member(
        project=read_metadata("project/project-id"),
        zone=read_metadata("instance/zone").rpartition("/")[2],
        index=int(read_metadata("instance/name").rpartition("-")[2]),
        deadline=datetime.datetime.fromisoformat(job.pop("deadline")).timestamp(),
        **job,
    )


def end_group(member: Member, reason: str) -> None:
    """Resize the group to 0, until Compute Engine has taken it in; this machine goes with it."""
    print(f"ends the group {member.group}: {reason}", flush=True)
    place = f"{COMPUTE}/compute/v1/projects/{member.project}/zones/{member.zone}"
    wait_s = 1.0
    while True:
        try:
            token = json.loads(read_metadata("instance/service-accounts/default/token"))["access_token"]
            uri = f"{place}/instanceGroupManagers/{member.group}/resize?size=0"
            request = urllib.request.Request(uri, method="POST", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=30):
                return
        except (OSError, ValueError, KeyError) as error:
            print(f"resize: {error}; again in {wait_s:.0f} s", flush=True)
            time.sleep(wait_s)
            wait_s = min(60.0, 2 * wait_s)


def run(
    member: Member,
    command: list[str],
    *,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
    end: Callable[[Member, str], object] = end_group,
) -> None:
    """Run the stage until it is done or cannot succeed, then end the group.

    Args:
        member: This machine.
        command: What runs the stage here.
        now: Seconds since the epoch.
        sleep: Waits some seconds.
        end: Ends the group for a reason.
    """
    crashes, is_stopping = 0, False
    while now() < member.deadline and not is_stopping:
        began, code = now(), NOT_STARTED
        try:
            stage = subprocess.Popen(command)
        except OSError as error:
            print(f"{command[0]}: {error}", flush=True)
        else:

            def stop(number: int, frame: object, stage: subprocess.Popen[bytes] = stage) -> None:
                nonlocal is_stopping
                is_stopping = True
                stage.terminate()

            # The machine goes down: the stage saves, and the group makes the machine again.
            signal.signal(signal.SIGTERM, stop)
            while (ended := stage.poll()) is None and now() < member.deadline:
                sleep(1)
            code = end_stage(stage) if ended is None else ended
        print(f"exit code {code}", flush=True)
        if code in FINAL and member.index == 0:
            return end(member, "done" if code == DONE else f"exit code {code}")
        if code in FINAL:
            sleep(PATIENCE_S)
            # The first machine may still write what ends the stage.
            if code != DONE:
                return end(member, f"exit code {code}")
        elif code != TRY_AGAIN:
            crashes = crashes + 1 if now() - began < CRASH_S else 1
            if crashes >= (STARTS if code == NOT_STARTED else CRASHES):
                return end(member, f"ended {crashes} times in a row, the last time with exit code {code}")
        else:
            crashes = 0
        if not is_stopping:
            sleep(START_S if code == NOT_STARTED else 10)
    if not is_stopping:
        end(member, "its time is over")


def end_stage(stage: subprocess.Popen[bytes]) -> int:
    """End a stage whose time is over and return its exit code; the machine takes a container with it that stays."""
    stage.terminate()
    try:
        return stage.wait(STOP_S)
    except subprocess.TimeoutExpired:
        stage.kill()
        return stage.wait()


def container_command(member: Member) -> list[str]:
    """Return the command that runs the stage's container."""
    options = ["--rm", "--network=host", "--ipc=host", "--init", "--stop-timeout=25"]
    if Path("/dev/nvidiactl").exists():
        options.append("--gpus=all")
    options += [f"--env={name}={value}" for name, value in member.environment.items()]
    return ["docker", "run", *options, member.image, *member.command]


def main() -> None:
    """Run the stage of this machine's group."""
    member: Any = None
    while member is None:
        try:
            member = read_member()
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"metadata: {error}; again in 10 s", flush=True)
            time.sleep(10)
    registry = member.image.partition("/")[0]
    with contextlib.suppress(OSError):
        subprocess.run(["gcloud", "auth", "configure-docker", "--quiet", registry], check=False)
    run(member, container_command(member))


if __name__ == "__main__":
    main()
