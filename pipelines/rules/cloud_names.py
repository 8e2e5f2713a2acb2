"""What names of Google Cloud look like: a typing mistake in one is found before anything is asked of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from contracts.checked import Problem

_REGION = r"[a-z]+(?:-[a-z]+)+[0-9]{1,2}"
_PROJECT = r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"
# An address that mail servers take has more forms; these are the ones that people have.
_MAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"

# Kind -> (pattern, what is allowed, what to do).
_KINDS: dict[str, tuple[str, str, str]] = {
    "project": (
        _PROJECT,
        "a project id: 6 to 30 lower-case letters, digits and '-', first a letter (not the project's number or title)",
        "see `gcloud projects list`",
    ),
    "region": (_REGION, "a region, e.g. us-central1 (not a zone, e.g. us-central1-a)", "name the region of the bucket"),
    "bucket": (
        r"[a-z0-9](?:[a-z0-9._-]{1,220}[a-z0-9])?",
        "a bucket's name: lower-case letters, digits, '-', '_' and '.'",
        "see `gcloud storage ls`",
    ),
    "network": (
        r"projects/[0-9]+/global/networks/[a-z]([a-z0-9-]*[a-z0-9])?",
        "projects/NUMBER/global/networks/NAME, with the project's number",
        "see `gcloud projects describe PROJECT` for its number",
    ),
    "attachment": (
        rf"projects/{_PROJECT}/regions/{_REGION}/networkAttachments/[a-z]([a-z0-9-]*[a-z0-9])?",
        "projects/PROJECT/regions/REGION/networkAttachments/NAME",
        "see `gcloud compute network-attachments list`",
    ),
    "tensorboard": (
        rf"projects/(?:{_PROJECT}|[0-9]+)/locations/{_REGION}/tensorboards/[0-9]+",
        "projects/PROJECT/locations/REGION/tensorboards/NUMBER",
        "see `gcloud ai tensorboards list --region REGION`",
    ),
    "key": (
        rf"projects/{_PROJECT}/locations/{_REGION}/keyRings/[A-Za-z0-9_-]{{1,63}}/cryptoKeys/[A-Za-z0-9_-]{{1,63}}",
        "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY, without a version",
        "see `gcloud kms keys list --location REGION --keyring RING`",
    ),
    "mail": (_MAIL, "an e-mail address", "correct it"),
    # A run's name stands behind it, and both together have at most 121.
    "experiment": (r"[a-z0-9][a-z0-9-]{0,79}", "lower-case letters, digits and '-', up to 80", "rename it"),
}


def check_name(kind: str, where: str, value: str) -> Iterator[Problem]:
    """Yield a problem where a value is not set, or does not look like a name of its kind.

    Args:
        kind: A key of the table above.
        where: The configuration's name for the value.
        value: What was given.
    """
    pattern, allowed, todo = _KINDS[kind]
    if not re.fullmatch(pattern, value):
        yield Problem(f"{where} = {value}" if value else f"{where} is not set", allowed, todo)


def region_of_resource(name: str) -> str:
    """Return the region in a resource's name; empty: it has none."""
    found = re.search(r"/(?:locations|regions)/([^/]+)/", name)
    return found.group(1) if found else ""
