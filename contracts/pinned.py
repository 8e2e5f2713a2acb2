"""A URI together with the hash that its content must have, as one string, written as image digests are."""

from __future__ import annotations

_DIGEST_MARK = "@sha256:"


def pin(uri: str, sha256: str) -> str:
    """Return one string for a URI and the sha256 of its content, in hex digits."""
    return f"{uri}{_DIGEST_MARK}{sha256}"


def unpin(pinned: str) -> tuple[str, str | None]:
    """Return the URI and the sha256; None where there is none."""
    uri, mark, sha256 = pinned.rpartition(_DIGEST_MARK)
    return (uri, sha256) if mark else (pinned, None)
