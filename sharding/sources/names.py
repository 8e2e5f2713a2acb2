"""Names that are no images: what systems and programs leave beside them."""

from __future__ import annotations

# Compared in lower case. Thumbnails among them: @eaDir is Synology's, the databases are those of Windows.
IGNORED_NAMES = frozenset(
    {
        b"thumbs.db",
        b"ehthumbs.db",
        b"desktop.ini",
        b"icon\r",
        b"__macosx",
        b"@eadir",
        b"$recycle.bin",
        b"system volume information",
        b"lost+found",
    }
)


def is_ignored(name: bytes) -> bool:
    """Whether a file or folder is no image by its name; hidden ones (.DS_Store, ._1.jpg, .thumbnails) are none."""
    return name.startswith(b".") or name.lower() in IGNORED_NAMES
