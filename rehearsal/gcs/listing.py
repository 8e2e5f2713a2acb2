"""One page of an object listing.

https://cloud.google.com/storage/docs/json_api/v1/objects/list: names in UTF-8 order; with a delimiter, what lies behind
it becomes one prefix; at most 1,000 entries, objects and prefixes together, a page.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from rehearsal.doors.http_messages import Request
from rehearsal.gcs.index import Record
from rehearsal.gcs.messages import ApiError, number_in
from rehearsal.gcs.objects import Objects

MAX_RESULTS = 1000
_LAST = chr(0x10FFFF)


@dataclass
class Page:
    """Objects and prefixes in one order, and where the next page starts."""

    items: list[Record] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    next_token: str | None = None


def list_page(objects: Objects, bucket: str, request: Request) -> Page:
    """Return the page that the request's query asks for."""
    query = request.query
    if _is_true(query, "versions"):
        raise ApiError(501, "objects.list with versions is not implemented here: only live generations exist")
    objects.bucket(bucket)
    limit = number_in(request.query, "maxResults")
    if limit is not None and limit < 0:
        raise ApiError(400, f"Invalid value for maxResults: {limit}")
    limit = min(limit or MAX_RESULTS, MAX_RESULTS)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    with_delimited = _is_true(query, "includeTrailingDelimiter")
    start = max(prefix, query.get("startOffset", ""), key=str.encode)
    end = query.get("endOffset", "")
    if prefix and (not end or after_prefix(prefix).encode() < end.encode()):
        end = after_prefix(prefix)
    if token := query.get("pageToken"):
        start = max(start, _start_of(token), key=str.encode)

    page = Page()
    last_prefix = None
    # With a delimiter most rows of a long answer would be thrown away.
    num_rows = min(limit + 1, 32) if delimiter else limit + 1
    while True:
        rows = objects.rows(bucket, start, end, num_rows)
        for record in rows:
            cut = record.name.find(delimiter, len(prefix)) if delimiter else -1
            common = record.name[: cut + len(delimiter)] if cut >= 0 else None
            is_item = common is None or (with_delimited and record.name == common)
            is_prefix = common is not None and common != last_prefix
            is_full = len(page.items) + len(page.prefixes) + is_item + is_prefix > limit
            # What adds nothing ends no page: the next one would name its prefix again.
            if is_full and (is_item or is_prefix) and (page.items or page.prefixes):
                page.next_token = _token_of(record.name)
                return page
            if is_prefix and common is not None:
                page.prefixes.append(common)
                last_prefix = common
            if is_item:
                page.items.append(record)
            elif common is not None:
                # Everything else below the prefix is skipped by one look into the index.
                start = after_prefix(common)
                break
            start = record.name + "\0"
        else:
            if len(rows) < num_rows:
                return page


def after_prefix(prefix: str) -> str:
    """Return the first name after all that start with `prefix`."""
    last = ord(prefix[-1])
    if prefix[-1] == _LAST:
        return prefix + _LAST
    # The surrogates are no characters: UTF-8 goes from U+D7FF to U+E000.
    return prefix[:-1] + chr(0xE000 if last + 1 == 0xD800 else last + 1)


def _is_true(query: dict[str, str], name: str) -> bool:
    # Python's clients write True.
    return query.get(name, "").lower() == "true"


def _token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _start_of(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise ApiError(400, "Invalid page token") from None
