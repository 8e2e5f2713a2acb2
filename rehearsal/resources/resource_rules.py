"""Rules that several resources share: labels, display names, keys, networks, accounts, folders."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rehearsal.doors.errors import Violation

# Letters of any script are allowed, upper case is not: https://cloud.google.com/resource-manager/docs/labels-overview
_LABEL_KEY = re.compile(r"(?=[^\W\d_])[\w-]{1,63}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_MAX_LABELS = 64
_MAX_DISPLAY_NAME = 128
_KEY = re.compile(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")
_NETWORK = re.compile(r"projects/\d+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_BUCKET_PATH = re.compile(r"gs://[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9](/.*)?")


def check_display_name(text: str, field: str) -> list[Violation]:
    """Return what is wrong with a display name, which is required."""
    if not text:
        return [Violation(field, "is required.")]
    if len(text) > _MAX_DISPLAY_NAME:
        return [Violation(field, f"has {len(text)} characters: {_MAX_DISPLAY_NAME} is the most.")]
    return []


def check_labels(labels: Mapping[str, str], field: str) -> list[Violation]:
    """Return what is wrong with labels."""
    found = []
    if len(labels) > _MAX_LABELS:
        found.append(Violation(field, f"{len(labels)} labels: {_MAX_LABELS} is the most."))
    for key, value in labels.items():
        if _LABEL_KEY.fullmatch(key) is None or key != key.lower():
            found.append(
                Violation(field, f"key {key!r}: a lower-case letter, then up to 62 of lower case, digits, _ and -.")
            )
        if _LABEL_VALUE.fullmatch(value) is None or value != value.lower():
            found.append(
                Violation(f"{field}[{key}]", f"value {value!r}: up to 63 of lower-case letters, digits, _ and -.")
            )
    return found


def check_key(name: str, location: str, field: str) -> list[Violation]:
    """Return what is wrong with the name of an encryption key ("" is none)."""
    if not name:
        return []
    match = _KEY.fullmatch(name)
    if match is None:
        return [Violation(field, f"{name!r} is not projects/P/locations/L/keyRings/R/cryptoKeys/K.")]
    if match.group(1) != location:
        return [Violation(field, f"the key is in {match.group(1)}: it has to be in {location}, with the resource.")]
    return []


def check_network(name: str, field: str) -> list[Violation]:
    """Return what is wrong with the name of a network ("" is none)."""
    if name and _NETWORK.fullmatch(name) is None:
        return [Violation(field, f"{name!r} is not projects/PROJECT_NUMBER/global/networks/NETWORK.")]
    return []


def check_account(address: str, field: str) -> list[Violation]:
    """Return what is wrong with a service account's address ("" is the default account)."""
    if address and _ACCOUNT.fullmatch(address) is None:
        return [Violation(field, f"{address!r} is no service account's address.")]
    return []


def check_folder(uri: str, field: str, *, required: bool = False) -> list[Violation]:
    """Return what is wrong with a Cloud Storage folder."""
    if not uri:
        return [Violation(field, "is required.")] if required else []
    if _BUCKET_PATH.fullmatch(uri) is None:
        return [Violation(field, f"{uri!r} is not gs://BUCKET/PATH.")]
    return []
