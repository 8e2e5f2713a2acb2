"""Starts a stage in a container that has not got the project: a job's command is `python3 -c TEXT ARGUMENTS`.

    WHEEL_URI WHEEL_SHA256 CONSTRAINTS_URI CONSTRAINTS_SHA256 EXTRAS [REQUIREMENTS_URI SHA256] -- python -m MODULE ...

It fetches the wheel, the constraints and the requirements of own code from the bucket, makes an environment with a
Python that the project runs on, installs them there and becomes the stage. The standard library is all it needs, in
Python 3.8 and newer; nothing here may import the project. Where SHARDLINE_PREINSTALLED is set (a rehearsal), the
project is there already. Exit code 2 is a mistake that every later attempt would meet again; unlike the stages this
program leaves no marker of it (jobs/JOB/ended.json), so Vertex AI may start the job again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NoReturn

OLDEST, NEWEST = (3, 11), (3, 12)
AGAIN, USER_ERROR = 75, 2
TRIES = 5
# Of one command; torch with its CUDA libraries is some gigabytes.
TIMEOUT_S = 3600
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"


def say(text: str) -> None:
    """Print a line that Cloud Logging keeps."""
    print(f"prebuilt: {text}", file=sys.stderr, flush=True)


def stop(code: int, text: str) -> NoReturn:
    """End, saying why."""
    say(text)
    sys.exit(code)


def fetch(uri: str, sha256: str, path: Path) -> None:
    """Download an object and check its hash."""
    bucket, _, name = uri[len("gs://") :].partition("/")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    base = emulator or "https://storage.googleapis.com"
    url = f"{base}/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}?alt=media"
    for attempt in range(TRIES):
        try:
            headers = {} if emulator else {"Authorization": f"Bearer {token()}"}
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404):
                stop(USER_ERROR, f"{uri} cannot be read: HTTP {error.code}; does the job's account see the bucket?")
            say(f"{uri}: HTTP {error.code}")
        except OSError as error:
            say(f"{uri}: {error}")
        else:
            if hashlib.sha256(content).hexdigest() != sha256:
                stop(USER_ERROR, f"{uri} has another content than the one that was submitted; submit again")
            path.write_bytes(content)
            return
        time.sleep(2**attempt)
    stop(AGAIN, f"{uri}: no answer")


def token() -> str:
    """Return an access token of the machine's account."""
    request = urllib.request.Request(METADATA, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["access_token"])


def run(command: list[str]) -> None:
    """Run a command to its end, or end."""
    say(" ".join(command))
    try:
        code = subprocess.call(command, stdout=sys.stderr, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        stop(AGAIN, f"`{' '.join(command[:4])}` has not ended after {TIMEOUT_S} s")
    if code:
        stop(AGAIN, f"`{' '.join(command[:4])}` ended with exit code {code}")


def environment(folder: Path) -> str:
    """Make an environment with a Python that the project runs on, and return its interpreter."""
    python = str(folder / "bin" / "python")
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    found = [path for path in map(shutil.which, names) if path]
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        found.insert(0, sys.executable)
    for candidate in found:
        if subprocess.call([candidate, "-m", "venv", str(folder)], stdout=sys.stderr) == 0:
            return python
        shutil.rmtree(folder, ignore_errors=True)
    oldest = ".".join(map(str, OLDEST))
    say(f"no Python {oldest} to {'.'.join(map(str, NEWEST))} here (this is {sys.version.split()[0]}): uv brings one")
    tools = folder.with_name("tools")
    run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "uv"])
    run([str(tools / "bin" / "uv"), "venv", "--seed", "--python", oldest, str(folder)])
    return python


def main(arguments: list[str]) -> NoReturn:
    """Install, and become the stage."""
    cut = arguments.index("--")
    wheel_uri, wheel_sha256, constraints_uri, constraints_sha256, extras, *own = arguments[:cut]
    command = arguments[cut + 1 :]
    python = sys.executable
    if not os.environ.get("SHARDLINE_PREINSTALLED"):
        began = time.time()
        folder = Path(tempfile.mkdtemp(prefix="shardline-"))
        wheel, constraints = folder / wheel_uri.rpartition("/")[2], folder / "constraints.txt"
        fetch(wheel_uri, wheel_sha256, wheel)
        fetch(constraints_uri, constraints_sha256, constraints)
        python = environment(folder / "venv")
        wanted = f"{wheel}[{extras}]" if extras else str(wheel)
        run([python, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), wanted])
        if own:
            requirements = folder / "own-requirements.txt"
            fetch(own[0], own[1], requirements)
            given = ["--constraint", str(constraints), "--requirement", str(requirements)]
            run([python, "-m", "pip", "install", "--quiet", *given])
        say(f"installed in {time.time() - began:.0f} s")
    # As in the images: the working folder is no place of modules.
    os.environ["PYTHONSAFEPATH"] = "1"
    if command[0] == "python":
        command[0] = python
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
