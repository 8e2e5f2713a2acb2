"""Takes out of a trace what names the machine and its user, so that it can be handed on.

kineto writes host_name, traceName (the path that it wrote to), INFO (lines of its log with process numbers) and
whatever a platform adds (public traces carry username and job names); frames of Python and Triton's arguments hold
paths; what threads, processes and annotations are called is free. So of the head only what is known to be harmless
stays, and every string value is looked at, wherever it stands.
"""

from __future__ import annotations

import getpass
import gzip
import json
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from contracts import storage
from trainer.profiling.kineto import read_document

# What the head of a trace may keep: versions, what was recorded, the GPUs and the ranks.
_KEPT = frozenset(
    {
        "schemaVersion",
        "deviceProperties",
        "distributedInfo",
        "cupti_version",
        "cuda_runtime_version",
        "cuda_driver_version",
        "hip_runtime_version",
        "hip_driver_version",
        "profile_memory",
        "record_shapes",
        "with_flops",
        "with_stack",
        "with_modules",
        "trace_id",
        "displayTimeUnit",
        "baseTimeNanoseconds",
        "traceEvents",
    }
)
# Keys of the chrome format whose values are no free text: a host called "kernel" must not unmake a trace.
_FORMAT_KEYS = frozenset({"ph", "cat", "bp", "s", "schemaVersion", "displayTimeUnit", "trace_id"})
# Two folders deep and more: "a / b" and units such as GB/s are no paths.
_PATH = re.compile(r"(?<![\w.)\]])(?:file://)?(?:~|[A-Za-z]:)?(?:[/\\][\w.+@%=~-]+)+[/\\]([\w.+@%=~-]+)")


def strip_host(path: Path) -> None:
    """Take host names, user names and folders of this machine out of a trace, in place; .json or .json.gz.

    Raises:
        DataError: It is no trace.
    """
    document = read_document(path)
    names = _names_of_this_machine()
    # A trace may have been recorded elsewhere.
    if isinstance(recorded := document.get("host_name"), str):
        names |= _host_forms(recorded)
    if isinstance(user := document.get("username"), str) and user:
        names.add(user)
    kept = {key: value for key, value in document.items() if key in _KEPT}
    stripped = _without(kept, _pattern(names))
    data = json.dumps(stripped, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        # Neither time nor name in the header: the same trace is the same bytes.
        data = gzip.compress(data, mtime=0)
    storage.replace(storage.normalise(path), data)


def _names_of_this_machine() -> set[str]:
    names = _host_forms(socket.gethostname())
    # A container's user need not have a name.
    with suppress(KeyError, OSError):
        names.add(getpass.getuser())
    return names


def _host_forms(host: str) -> set[str]:
    return {host, host.split(".")[0]} - {""}


def _pattern(names: set[str]) -> re.Pattern[str]:
    # The longest first, so that no half of a full name is left.
    listed = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{listed})(?![A-Za-z0-9])", re.IGNORECASE)


def _without(value: Any, names: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return names.sub("machine", _PATH.sub(r"\1", value))
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    if isinstance(value, dict):
        return {key: item if key in _FORMAT_KEYS else _without(item, names) for key, item in value.items()}
    return value
