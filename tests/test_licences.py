"""Licences of all that `pip install shardline[EXTRA]` brings, as the installed distributions state them."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

# Each asks for no more than its text and notices in copies (PSF and CNRI: Python's own).
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib"),
}
# Weak copyleft, by file: changes of those files are published; what merely uses them is under no condition. Named one
# by one: a new one is looked at.
FILE_COPYLEFT = {
    "certifi": "MPL-2.0: a list of certificates, unchanged",
    "hypothesis": "MPL-2.0: tests alone (dev)",
    "orjson": "MPL-2.0 for one part: unchanged; of apache-beam",
    "pathspec": "MPL-2.0: unchanged; of mypy and the build (dev)",
    "tqdm": "MPL-2.0 and MIT: unchanged; of transformers and torchmetrics",
}
# NVIDIA's own licence: in extras of their own (rtx, tensorrt), never redistributed. Nothing else needs them.
PROPRIETARY = {"tensorrt-rtx-cu13", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs"}
# Not installed with `make install` (pyproject.toml says why), or not for every Python.
NOT_INSTALLED = {"tensorrt": "NVIDIA's own licence, an extra"}

# How metadata without an SPDX expression names them: classifiers and free text.
NAMES = {
    "Apache-2.0": r"apache",
    "BSD-3-Clause": r"bsd",
    "ISC": r"\bisc\b",
    "MIT": r"\bmit\b",
    "MPL-2.0": r"mozilla|\bmpl",
    "PSF-2.0": r"python software foundation|\bpsf",
}


def closure(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the names of all distributions that requirements bring, in this environment, and of those not installed."""
    todo = [Requirement(line) for line in requirements]
    seen = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name == "shardline":
            lines = [line for extra in requirement.extras for line in PROJECT["optional-dependencies"][extra]]
            todo += [Requirement(line) for line in lines]
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            yield name
            try:
                lines = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            for line in lines:
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    todo.append(inner)


def licences_of(name: str) -> set[str]:
    """Return the SPDX names of a distribution's licences, one of each `OR` left out where another is permissive."""
    metadata = importlib.metadata.metadata(name)
    return parse(
        metadata.get("License-Expression"),
        [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")],
        metadata.get("License") or "",
    )


def parse(expression: str | None, classifiers: Iterable[str], text: str) -> set[str]:
    """Return SPDX names from the three places of a distribution's metadata; what is not understood stays as it is."""
    if expression:
        found = set()
        for part in re.split(r"\s+AND\s+", re.sub(r"[()]", "", expression)):
            choices = [choice.strip() for choice in re.split(r"\s+OR\s+", part)]
            found.add(next((choice for choice in choices if choice in PERMISSIVE), part))
        return found
    said = [line.rpartition(" :: ")[2] for line in classifiers if "DFSG" not in line and line.count("::") > 1]
    # A whole licence as text: its first line names it.
    said = said or [text.strip().splitlines()[0]] if said or text.strip() else []
    found = set()
    for line in said:
        if line in PERMISSIVE or re.search(r"gpl|gnu|affero|eupl|cecill|share.?alike|proprietary", line, re.IGNORECASE):
            found.add(line)
        else:
            found |= {name for name, words in NAMES.items() if re.search(words, line, re.IGNORECASE)} or {line}
    return found or {"unknown"}


def test_every_dependency_may_be_used_and_shipped_beside() -> None:
    extras = PROJECT["optional-dependencies"]
    found = sorted(set(closure([*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)])))
    assert len(found) > 150
    installed = {canonicalize_name(one.metadata["Name"]) for one in importlib.metadata.distributions()}
    assert {name for name in found if name not in installed} <= set(NOT_INSTALLED)
    refused = {}
    for name in (name for name in found if name in installed and name not in NOT_INSTALLED):
        licences = licences_of(name) - PERMISSIVE
        if name in PROPRIETARY or (name in FILE_COPYLEFT and licences <= {"MPL-2.0"}):
            continue
        if licences:
            refused[name] = sorted(licences)
    assert refused == {}, "look at the licence: allow it by name with a reason, or do without the package"


def test_what_is_proprietary_comes_by_its_extra_alone() -> None:
    extras = PROJECT["optional-dependencies"]
    theirs = {"rtx", "tensorrt"}
    others = [line for name, lines in extras.items() if name not in theirs for line in lines]
    assert {name for name in closure([*PROJECT["dependencies"], *others]) if "tensorrt" in name} == set()
    assert {name for extra in theirs for name in closure(extras[extra]) if "tensorrt" not in name} == set()
