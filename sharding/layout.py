"""Class folders of a source: SOURCE/CLASS/.../FILE, or SOURCE/SPLIT/CLASS/.../FILE.

Folders are splits where every folder directly below the source has the name of one. The files of splits without a
folder are drawn by hash from the folder of the training split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.names import encode_name, name_some

ALLOWED = "a folder that holds one folder of images per class, e.g. SOURCE/cat/1.jpg and SOURCE/dog/2.jpg"
# Names of folders of splits, in lower case; places in SPLITS.
_SPLIT_WORDS = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "test": 2,
    "testing": 2,
}


class ClassFolder(NamedTuple):
    """A class folder."""

    path: bytes
    """Relative to the source."""
    name: bytes
    split: int | None
    """The split that it gives, a place in SPLITS; None: the splits of its files are drawn."""


class Layout(NamedTuple):
    """The class folders of a source."""

    folders: list[ClassFolder]
    split_folders: list[bytes]
    """Folders of splits that hold the class folders; none where these lie directly in the source."""
    drawn: SplitFractions | None
    """Shares by which the files of the training split's folder are divided, where other splits have no folder; None:
    all of them are for training."""

    @property
    def gives_splits(self) -> bool:
        """Whether folders give the split of any file."""
        return any(folder.split is not None for folder in self.folders)


def find_layout(section: ShardingSection, list_inner: Callable[[bytes], list[bytes]], shown: str) -> Layout:
    """Tell class folders from folders of splits.

    Args:
        section: `group_by` cannot hold where folders give the splits.
        list_inner: Returns the names of the folders directly below one (empty: the source), without ignored ones.
        shown: The source, as errors name it.

    Raises:
        ConfigError: `sharding.group_by` is set, and folders give splits.
        DataError: Some have the name of a split and others have not, or those of splits hold no class folders.
    """
    top = list_inner(b"")
    words = sorted(name for name in top if _split_of(name) is not None)
    others = sorted(set(top) - set(words))
    inner = [] if others else [(word, name) for word in words for name in list_inner(word)]
    if inner:
        drawn = _find_drawn(section.splits, words)
        splits = {word: split for word in words if (split := _split_of(word)) or drawn is None}
        found = [ClassFolder(word + b"/" + name, name, splits.get(word)) for word, name in inner]
        layout = Layout(found, words, drawn)
        if section.group_by and layout.gives_splits:
            raise ConfigError(
                f"sharding.group_by is set, but {shown} holds the folders {_show(words)}, which give the splits",
                allowed="groups where splits are drawn: class folders directly below the source, or a manifest",
                todo="unset sharding.group_by, or write a manifest with a column for the group",
            )
        return layout
    if len(words) >= 2:
        raise DataError(
            f"{shown} holds the folders {_show(words)}, which are called like splits, "
            + (f"beside {_show(others)}, which are not" if others else "without class folders in them"),
            allowed="one folder of images per class directly below the source; or folders of splits alone (train, "
            "validation or val, test), with one folder per class in each",
            todo="if they are splits, "
            + (f"move {_show(others)} out of the source" if others else "put folders of the classes into each of them")
            + f"; if they are classes, rename {_show(words)}",
        )
    return Layout([ClassFolder(name, name, None) for name in top], [], None)


def check_class_folders(classes: Sequence[bytes], shown: str, more: str = "") -> None:
    """Raise DataError when there are fewer than two classes."""
    if len(classes) < 2:
        names = ", ".join(encode_name(name) for name in classes)
        raise DataError(
            f"{shown} holds {f'a single class ({names})' if classes else 'no class folder'}{more}",
            allowed=ALLOWED + "; at least two classes",
            todo="put the images of each class into a folder of its own, directly below the source",
        )


def _find_drawn(fractions: SplitFractions, words: Sequence[bytes]) -> SplitFractions | None:
    """Return the shares of the training split and of those without a folder in the files of the training folder."""
    given = {SPLITS[split] for word in words if (split := _split_of(word)) is not None}
    shares = {name: getattr(fractions, name) for name in SPLITS if name == SPLITS[0] or name not in given}
    total = sum(shares.values())
    if SPLITS[0] not in given or total == shares[SPLITS[0]]:
        return None
    return SplitFractions(**{name: shares.get(name, 0.0) / total for name in SPLITS})


def _split_of(name: bytes) -> int | None:
    return _SPLIT_WORDS.get(name.decode("utf-8", "replace").lower())


def _show(names: Sequence[bytes]) -> str:
    return name_some([encode_name(name) for name in names])
