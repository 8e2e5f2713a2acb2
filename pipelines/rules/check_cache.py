"""Answers of checks that found nothing wrong, kept on this machine: what has not changed is not looked at again.

An answer is named by all that it hangs on: the question, this project's code, the installed packages, the folder
(where own code is named), and the variables by which modules and GPUs are found. The files that it names itself, e.g.
own code, are compared when it is taken. It lies in SHARDLINE_CACHE_DIR, by default ~/.cache/shardline (XDG_CACHE_HOME);
where that cannot be written, everything is checked each time. Deleting the folder costs one check.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from contracts.checked import CheckAnswer
from contracts.user_cache import user_cache

# Kept answers; the oldest go.
_MAX_KEPT = 200
# Files up to this size are compared by content, larger ones (weights) by size and time of change.
_HASHED_BYTES = 1 << 20
_VARIABLES = ("PYTHONPATH", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PET_NPROC_PER_NODE")
# Packages of this project that checks are made of.
_CODE = ("contracts", "records", "sharding", "trainer")


def name_question(command: Sequence[str], folder: str) -> str:
    """Return the name of a check's answer.

    Args:
        command: What is asked.
        folder: Where own code and relative paths are looked for; empty: there are none.
    """
    packages = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    root = Path(__file__).resolve().parents[2]
    parts = {
        "command": list(command),
        "python": [sys.executable, sys.version],
        "folder": folder,
        "variables": {name: os.environ.get(name, "") for name in _VARIABLES},
        # Installing or removing a package changes the folder that holds them all.
        "packages": [(str(path), path.stat().st_mtime_ns) for path in packages if path.is_dir()],
        "code": [
            (str(path), path.stat().st_mtime_ns) for name in _CODE for path in sorted((root / name).rglob("*.py"))
        ],
        "devices": [platform.node(), *_list_devices()],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def find_answer(name: str) -> CheckAnswer | None:
    """Return a kept answer; None: there is none, or a file that it hangs on has changed."""
    try:
        kept = json.loads((user_cache("checks") / f"{name}.json").read_text(encoding="utf-8"))
        answer = CheckAnswer.model_validate(kept["answer"])
        if kept["files"] == {path: _identify(Path(path)) for path in answer.files}:
            return answer
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def keep_answer(name: str, answer: CheckAnswer, began_at_s: float) -> None:
    """Keep an answer in which nothing is wrong.

    Args:
        name: From `name_question`, before the question was asked.
        answer: The answer.
        began_at_s: When it was asked, in seconds since the epoch: what has changed since is looked at again.
    """
    if answer.problems or not answer.complete:
        return
    with contextlib.suppress(OSError):
        if any(Path(path).stat().st_mtime >= began_at_s for path in answer.files):
            return
        files = {path: _identify(Path(path)) for path in answer.files}
        folder = user_cache("checks")
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"answer": answer.model_dump(mode="json"), "files": files}, stream)
        Path(temporary).replace(folder / f"{name}.json")
        _remove_oldest(folder.glob("*.json"))


def _remove_oldest(paths: Iterable[Path]) -> None:
    newest_first = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in newest_first[_MAX_KEPT:]:
        path.unlink(missing_ok=True)


def _identify(path: Path) -> str:
    status = path.stat()
    if path.is_file() and status.st_size <= _HASHED_BYTES:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{status.st_size} {status.st_mtime_ns}"


def _list_devices() -> list[str]:
    """Return what shows that GPUs came or went; which ones they are, the checks ask."""
    found = [path.name for path in Path("/dev").glob("nvidia*")] + [path.name for path in Path("/dev").glob("dxg")]
    return sorted(found + [path.name for path in Path("/proc/driver/nvidia/gpus").glob("*")])
