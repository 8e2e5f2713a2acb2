"""Licences of all installed distributions, as they state them: none is copyleft or unknown, but those named here."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.utils import canonicalize_name

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# Each asks for no more than its text and notices in copies.
PERMISSIVE = re.compile(r"apache|\bbsd|0bsd|\bmit\b|\bisc\b|psf|python software|zlib|cc0|bsl-1|boost|cnri|hpnd", re.I)
REFUSED = re.compile(r"gpl|gnu|affero|eupl|cecill|share.?alike|proprietary|\bmpl|mozilla", re.I)
NAMED = {
    # Weak copyleft, by file: changes of those files are published; what merely uses them is under no condition.
    "certifi": "MPL-2.0: a list of certificates, unchanged",
    "hypothesis": "MPL-2.0: tests alone (dev)",
    "orjson": "MPL-2.0 for one part: unchanged; of apache-beam",
    "pathspec": "MPL-2.0: unchanged; of mypy and the build (dev)",
    "tqdm": "MPL-2.0 and MIT: unchanged; of transformers and torchmetrics",
    # NVIDIA's own licence: in extras of their own, never redistributed.
    "tensorrt-rtx-cu13": "extra rtx",
    "tensorrt-rtx-cu13-bindings": "extra rtx",
    "tensorrt-rtx-cu13-libs": "extra rtx",
}


def licence_of(one: importlib.metadata.Distribution) -> str:
    """Return a distribution's licence: its expression, else its classifiers, else the first line of its text."""
    if expression := one.metadata.get("License-Expression"):
        return expression
    classifiers = [line for line in one.metadata.get_all("Classifier", []) if line.startswith("License ::")]
    return "; ".join(classifiers) or (one.metadata.get("License") or "").strip().partition("\n")[0]


def test_every_dependency_may_be_used_and_shipped_beside() -> None:
    found = {canonicalize_name(one.metadata["Name"]): licence_of(one) for one in importlib.metadata.distributions()}
    assert len(found) > 150
    refused = {
        name: licence
        for name, licence in found.items()
        if name not in NAMED and name != "shardline" and (REFUSED.search(licence) or not PERMISSIVE.search(licence))
    }
    assert refused == {}, "look at the licence: allow it by name with a reason, or do without the package"


def test_what_is_proprietary_comes_by_its_extra_alone() -> None:
    assert {name for name, lines in EXTRAS.items() if "tensorrt" in str(lines)} == {"rtx", "tensorrt"}
