"""The user's cache folder: what can be made again, kept between commands."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "SHARDLINE_CACHE_DIR"


def user_cache(name: str) -> Path:
    """Return the path of one cache, which need not exist.

    It lies in SHARDLINE_CACHE_DIR, by default ~/.cache/shardline (XDG_CACHE_HOME).
    """
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given) / name
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(caches) / "shardline" / name
