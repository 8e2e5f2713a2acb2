"""Warnings about a listing: valid, but likely a mistake."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from contracts.config import SPLITS, SplitFractions
from sharding.names import MAX_EXAMPLES, encode_name, encode_path, join_names
from sharding.reference import Listing

# Deviation of a share that is reported, and the least number of samples for which shares are compared.
_MAX_DEVIATION, _LEAST_SAMPLES = 0.02, 100
# Suffixes of pictures: a file outside of class folders with one is worth a warning.
_IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".png", b".webp", b".gif", b".bmp", b".tif", b".tiff")


def describe_outside(paths: Sequence[bytes]) -> list[str]:
    """Return a warning where pictures lie outside of the class folders."""
    images = sorted(path for path in paths if path.lower().endswith(_IMAGE_SUFFIXES))
    if not images:
        return []
    number = f"{len(images)} image{'s' * (len(images) > 1)} outside of class folders"
    return [f"{number} left out: {join_names([encode_path(path) for path in images])}"]


def describe_drawn(drawn: SplitFractions | None) -> list[str]:
    """Return a warning where the folder of the training split is divided by hash."""
    if drawn is None:
        return []
    shares = {name: getattr(drawn, name) for name in SPLITS[1:]}
    drawn_shares = " and ".join(f"{share:.3g} of it for {name}" for name, share in shares.items() if share)
    text = f"not every split has a folder: that of training is divided by hash, {drawn_shares} (sharding.splits)"
    return [f"{text}; a share of 0 divides nothing"]


def describe_listing(listing: Listing, fractions: SplitFractions) -> list[str]:
    """Return the warnings about a listing: classes missing in a split, lookalike names, shares that deviate.

    Args:
        listing: The listing of the source.
        fractions: The configured shares.
    """
    warnings = []
    for split, name in enumerate(SPLITS):
        class_counts = listing.counts[split]
        if split == 0 or (getattr(fractions, name) == 0 and not any(class_counts)):
            continue
        absent = [encode_name(listing.classes[label]) for label, count in enumerate(class_counts) if count == 0]
        if absent:
            warnings.append(f"the {name} split has no sample of class {join_names(absent)}")
    for classes in (listing.classes, *listing.vocabularies.values()):
        warnings += describe_lookalikes(classes)
    if listing.names_splits:
        return warnings
    if splits := _find_deviations([("", listing.split_files)], fractions):
        warnings.append(f"splits are not as large as sharding.splits says: {', '.join(splits)}")
    by_class = zip(map(encode_name, listing.classes), zip(*listing.counts, strict=True), strict=True)
    if shares := _find_deviations(by_class, fractions):
        warnings.append(
            f"classes are not divided as sharding.splits says, by more than {_MAX_DEVIATION * 100:g} points: "
            f"{join_names(shares, MAX_EXAMPLES)}"
        )
    return warnings


def describe_lookalikes(classes: Sequence[bytes]) -> list[str]:
    """Return a warning for each two classes of one field with names that look the same."""
    warnings = []
    by_lower: dict[str, str] = {}
    by_appearance: dict[str, str] = {}
    for name in map(encode_name, classes):
        same_lower = by_lower.setdefault(name.lower(), name)
        alike = by_appearance.setdefault(_normalise(name), name)
        if same_lower != name:
            warnings.append(f"classes {same_lower} and {name} differ only in upper and lower case")
        elif alike != name:
            warnings.append(f"classes {alike!a} and {name!a} are the same to a reader, or nearly")
    return warnings


def _normalise(name: str) -> str:
    """Return a text that is equal for names that look the same: NFKC, one blank for several, nothing invisible."""
    text = unicodedata.normalize("NFKC", name)
    text = "".join(char for char in text if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(text.split()).casefold())


def _find_deviations(counted: Iterable[tuple[str, Sequence[int]]], fractions: SplitFractions) -> list[str]:
    """Describe shares that deviate, largest deviation first; `counted` is (name, samples per split)."""
    deviations = []
    for name, counts in counted:
        total = sum(counts)
        if total < _LEAST_SAMPLES:
            continue
        for split, count in zip(SPLITS, counts, strict=True):
            expected = getattr(fractions, split)
            if abs(count - expected * total) > _MAX_DEVIATION * total:
                prefix = f"{name}: " if name else ""
                text = f"{prefix}{split} {100 * count / total:.1f} % instead of {100 * expected:g} %"
                deviations.append((-abs(count / total - expected), text))
    return [text for _, text in sorted(deviations)]
