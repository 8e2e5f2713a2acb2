"""What folders of a source mean: SOURCE/CLASS/.../FILE, or SOURCE/SPLIT/CLASS/.../FILE.

Folders are splits where every folder directly below the source is called like one. Splits without a folder are drawn by
hash from that of the training split. Paths are bytes, since file names
need not be text. Files outside of class folders, and names that systems leave behind, are not images of any class.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from contracts.config import SPLITS, ShardingSection, SplitFractions
from contracts.errors import ConfigError, DataError
from records.classes import sort_classes
from sharding.limits import encode_name, name_some
from sharding.sources.names import is_ignored
from sharding.sources.parts import Stretch
from sharding.sources.splitting import Splitter, make_group_finder

ALLOWED = "a folder that holds one folder of images per class, e.g. SOURCE/cat/1.jpg and SOURCE/dog/2.jpg"
# Names of folders that stand for a split, in lower case; places in SPLITS.
_SPLIT_WORDS = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "test": 2,
    "testing": 2,
}
# Of a file that lies where none is expected: enough to tell a picture from a README.
_IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".png", b".webp", b".gif", b".bmp", b".tif", b".tiff")


@dataclass(frozen=True)
class Layout:
    """The class folders of a source."""

    classes: tuple[bytes, ...]
    """In the order of records/classes.py."""
    folders: tuple[bytes, ...]
    """Class folders, relative to the source, in the order of the paths in them."""
    gives_splits: bool = False
    """Whether folders give the split of any file."""
    has_split_folders: bool = False
    """Whether class folders lie below folders of splits."""
    drawn: SplitFractions | None = None
    """Shares by which the files of the training split's folder are divided, where other splits have no folder; None:
    all of them are for training."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not meant."""
        if self.drawn is None:
            return ()
        shares = {name: getattr(self.drawn, name) for name in SPLITS[1:]}
        drawn = " and ".join(f"{share:.3g} of it for {name}" for name, share in shares.items() if share)
        text = f"not every split has a folder: that of training is divided by hash, {drawn} (sharding.splits)"
        return (f"{text}; a share of 0 divides nothing",)

    @cached_property
    def _labels(self) -> dict[bytes, int]:
        return {name: label for label, name in enumerate(self.classes)}

    def place(self, folder: bytes) -> tuple[int, int | None] | None:
        """Return (label, given split) of the files in a folder; None outside of the class folders.

        Raises:
            KeyError: Its class is none of `classes`.
        """
        names = folder.split(b"/")
        if not self.has_split_folders:
            return (self._labels[names[0]], None) if names[0] else None
        if len(names) < 2 or not names[1]:
            return None
        split = _split_of(names[0])
        return self._labels[names[1]], None if split == 0 and self.drawn is not None else split

    def save(self, path: Path) -> None:
        """Leave it for other processes: it may be large, and each of their tasks needs it."""
        path.write_bytes(pickle.dumps(self))


@lru_cache(maxsize=1)
def load_layout(path: Path) -> Layout:
    """Return what `Layout.save` left."""
    layout: Layout = pickle.loads(path.read_bytes())
    return layout


def find_layout(
    section: ShardingSection, top: Sequence[bytes], list_inner: Callable[[bytes], Sequence[bytes]], shown: str
) -> Layout:
    """Tell class folders from folders of splits.

    Args:
        section: `group_by` cannot hold where folders give the splits.
        top: Names of the folders directly below the source, without ignored ones.
        list_inner: Returns the same of one of them.
        shown: The source, as errors name it.

    Raises:
        ConfigError: `sharding.group_by` is set, and folders give splits.
        DataError: Some are called like splits and others are not, or those of splits hold no class folders.
    """
    words = sorted(name for name in top if _split_of(name) is not None)
    if len(words) == len(top):
        inner = {name: sorted(list_inner(name)) for name in words}
        classes = sort_classes(name for names in inner.values() for name in names)
        if classes:
            drawn = _find_drawn(section.splits, words)
            gives_splits = drawn is None or any(_split_of(word) for word in words)
            if section.group_by and gives_splits:
                raise ConfigError(
                    f"sharding.group_by is set, but {shown} holds the folders {_show(words)}, which give the splits",
                    allowed="groups where splits are drawn: class folders directly below the source, or a manifest",
                    todo="unset sharding.group_by, or write a manifest with a column for the group",
                )
            folders = [word + b"/" + name for word, names in inner.items() for name in names]
            return Layout(tuple(classes), _in_path_order(folders), gives_splits, has_split_folders=True, drawn=drawn)
    if len(words) >= 2:
        others = sorted(set(top) - set(words))
        raise DataError(
            f"{shown} holds the folders {_show(words)}, which are called like splits, "
            + (f"beside {_show(others)}, which are not" if others else "without class folders in them"),
            allowed="one folder of images per class directly below the source; or folders of splits alone (train, "
            "validation or val, test), with one folder per class in each",
            todo=(
                f"if they are splits, move {_show(others)} out of the source"
                if others
                else "if they are splits, put the images of each class into a folder of its own in each of them"
            )
            + f"; if they are classes, rename {_show(words)}",
        )
    return Layout(tuple(sort_classes(top)), _in_path_order(top))


def _find_drawn(fractions: SplitFractions, words: Sequence[bytes]) -> SplitFractions | None:
    """Return the shares of the training split and of those without a folder in what lies in that of training."""
    given = {SPLITS[split] for word in words if (split := _split_of(word)) is not None}
    shares = {name: getattr(fractions, name) for name in SPLITS if name == SPLITS[0] or name not in given}
    total = sum(shares.values())
    if SPLITS[0] not in given or total == shares[SPLITS[0]]:
        return None
    return SplitFractions(**{name: shares.get(name, 0.0) / total for name in SPLITS})


def _split_of(name: bytes) -> int | None:
    return _SPLIT_WORDS.get(name.decode("utf-8", "replace").lower())


def _in_path_order(folders: Sequence[bytes]) -> tuple[bytes, ...]:
    # "a.b/" comes before "a/", though the name "a" comes before "a.b".
    return tuple(sorted(folders, key=lambda name: name + b"/"))


def _show(names: Sequence[bytes]) -> str:
    return name_some([encode_name(name) for name in names])


class Sorter:
    """Decides about each file of a folder or bucket: class and split, or why it is no image of any class.

    Args:
        layout: The class folders.
        section: Decides about splits.
        stretch: Takes what is left out.
    """

    def __init__(self, layout: Layout, section: ShardingSection, stretch: Stretch) -> None:
        self._layout = layout
        self.stretch = stretch
        self._splitter = Splitter(layout.drawn or section.splits)
        self._find_group = make_group_finder(section.group_by) if section.group_by else None
        # Of the folder of the last file: most files have it in common with the next one.
        self._folder: bytes | None = None
        self._is_hidden = False
        self._place: tuple[int, int | None] | None = None

    def enter(self, folder: bytes) -> None:
        """Say that there is such a folder: its class is there, even without a file."""
        if folder != self._folder:
            names = folder.split(b"/")
            self._folder = folder
            self._is_hidden = any(map(is_ignored, names))
            self._place = None if self._is_hidden else self._layout.place(folder)
            if self._place is not None:
                self.stretch.seen.add(self._place[0])

    def sort_out(self, path: bytes) -> tuple[int, int] | None:
        """Return (label, split) of a file; None where it is no image of any class.

        Raises:
            KeyError: It is in a class folder that was not there when those were listed.
        """
        folder, _, name = path.rpartition(b"/")
        self.enter(folder)
        if self._is_hidden or is_ignored(name):
            self.stretch.ignored.add(path)
            return None
        if self._place is None:
            self.leave_outside(path)
            return None
        label, given = self._place
        group = self._find_group(path) if self._find_group else None
        return label, self._splitter.choose(path, group, given)

    def leave_outside(self, path: bytes) -> None:
        """Take in a file outside of the class folders."""
        self.stretch.ignored.add(path)
        if path.lower().endswith(_IMAGE_SUFFIXES):
            self.stretch.outside.add(path)


def check_class_folders(classes: Sequence[bytes], shown: str, more: str = "") -> None:
    """Raise DataError when there are fewer than two classes."""
    if len(classes) < 2:
        names = ", ".join(encode_name(name) for name in classes)
        raise DataError(
            f"{shown} holds {f'a single class ({names})' if classes else 'no class folder'}{more}",
            allowed=ALLOWED + "; at least two classes",
            todo="put the images of each class into a folder of its own, directly below the source",
        )
