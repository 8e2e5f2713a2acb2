"""Class folders of a source: SOURCE/CLASS/.../FILE, or SOURCE/SPLIT/CLASS/.../FILE.

Folders are splits where every folder directly below the source has the name of one. The files of splits without a
folder are drawn by hash from the folder of the training split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.names import encode_name, join_names

ALLOWED = "a folder that holds one folder of images per class, e.g. SOURCE/cat/1.jpg and SOURCE/dog/2.jpg"
# Names of folders of splits, in lower case; places in SPLITS.
_SPLIT_NAMES = {
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
    """Split of its files, an index into SPLITS; None: the splits are drawn by hash."""


class Layout(NamedTuple):
    """The class folders of a source."""

    folders: list[ClassFolder]
    split_folders: list[bytes]
    """Folders of splits; empty where the class folders are directly in the source."""
    drawn: SplitFractions | None
    """Shares that divide the folder of the training split; None: all of its files are for training."""

    @property
    def gives_splits(self) -> bool:
        """Whether folders give the split of any file."""
        return any(folder.split is not None for folder in self.folders)


def find_layout(section: ShardingSection, list_inner: Callable[[bytes], list[bytes]], shown: str) -> Layout:
    """Find the class folders of a source, directly in it or below folders of splits.

    Args:
        section: `group_by` cannot hold where folders give the splits.
        list_inner: Returns the names of the folders directly below one (empty: the source), without ignored ones.
        shown: The source, as errors name it.

    Raises:
        ConfigError: `sharding.group_by` is set, and folders give splits.
        DataError: Some have the name of a split and others have not, or those of splits hold no class folders.
    """
    top = list_inner(b"")
    folders = sorted(name for name in top if _split_of(name) is not None)
    unmatched = sorted(set(top) - set(folders))
    inner = [] if unmatched else [(folder, name) for folder in folders for name in list_inner(folder)]
    if inner:
        drawn = _find_drawn(section.splits, folders)
        splits = {folder: split for folder in folders if (split := _split_of(folder)) or drawn is None}
        class_folders = [ClassFolder(folder + b"/" + name, name, splits.get(folder)) for folder, name in inner]
        layout = Layout(class_folders, folders, drawn)
        if section.group_by and layout.gives_splits:
            raise ConfigError(
                f"sharding.group_by is set, but {shown} holds the folders {_show(folders)}, which give the splits",
                allowed="groups where splits are drawn: class folders directly below the source, or a manifest",
                todo="unset sharding.group_by, or write a manifest with a column for the group",
            )
        return layout
    if len(folders) >= 2:
        todo = f"move {_show(unmatched)} out of the source" if unmatched else "put class folders into each of them"
        raise DataError(
            f"{shown} holds the folders {_show(folders)}, which are called like splits, "
            + (f"beside {_show(unmatched)}, which are not" if unmatched else "without class folders in them"),
            allowed="one folder of images per class directly below the source; or folders of splits alone (train, "
            "validation or val, test), with one folder per class in each",
            todo=f"if they are splits, {todo}; if they are classes, rename {_show(folders)}",
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


def _find_drawn(fractions: SplitFractions, split_folders: Sequence[bytes]) -> SplitFractions | None:
    """Return the shares that divide the training folder between training and the splits without a folder."""
    present = {SPLITS[split] for word in split_folders if (split := _split_of(word)) is not None}
    shares = {name: getattr(fractions, name) for name in SPLITS if name == SPLITS[0] or name not in present}
    total = sum(shares.values())
    if SPLITS[0] not in present or total == shares[SPLITS[0]]:
        return None
    return SplitFractions(**{name: shares.get(name, 0.0) / total for name in SPLITS})


def _split_of(name: bytes) -> int | None:
    return _SPLIT_NAMES.get(name.decode("utf-8", "replace").lower())


def _show(names: Sequence[bytes]) -> str:
    return join_names([encode_name(name) for name in names])
