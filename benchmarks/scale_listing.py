"""A bucket of any number of objects that are only listed: `python benchmarks/scale_listing.py NUM [LATENCY_S]`.

rehearsal.gcs takes 70 microseconds of processor time to list an object, several times what is measured here. This
server computes names instead of keeping them, and answers objects.list alone: prefix, delimiter, offsets, tokens and
maxResults.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, overload
from urllib.parse import parse_qsl, urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from contracts.process import end_with_parent

NUM_CLASSES = 100
_PAGE = 1000


class Names(Sequence[str]):
    """The names of all objects, sorted: raw/class-007/00000042.jpg."""

    def __init__(self, num_objects: int) -> None:
        self._num_objects = num_objects
        self._per_class = -(-num_objects // NUM_CLASSES)

    def __len__(self) -> int:
        return self._num_objects

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        label, number = divmod(place, self._per_class)
        return f"raw/class-{label:03d}/{number:08d}.jpg"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else the last packet of a page waits 40 ms for the client's acknowledgement of the one before.
    disable_nagle_algorithm = True
    names: Names
    latency_s: float
    digests: tuple[str, ...]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        time.sleep(self.latency_s)
        content = self._list(query).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _list(self, query: dict[str, str]) -> str:
        prefix = query.get("prefix", "")
        start = max(prefix, query.get("startOffset", ""), query.get("pageToken", ""))
        first = bisect_left(self.names, start)
        end = bisect_left(self.names, prefix + "\uffff")
        if query.get("endOffset"):
            end = min(end, bisect_left(self.names, query["endOffset"]))
        if query.get("delimiter") == "/" and prefix.count("/") == 1:
            return json.dumps({"prefixes": [f"raw/class-{label:03d}/" for label in range(NUM_CLASSES)]})
        last = min(end, first + min(_PAGE, int(query.get("maxResults", _PAGE))))
        digests = self.digests
        items = ",".join(
            f'{{"name":"{self.names[k]}","size":"{100_000 + k % 9973}","generation":"{10**15 + k * 37}",'
            f'"crc32c":"AAAAAA==","md5Hash":"{digests[k % len(digests)]}"}}'
            for k in range(first, last)
        )
        token = f',"nextPageToken":"{self.names[last]}"' if last < end else ""
        return f'{{"items":[{items}]{token}}}'

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the process that started this one ends."""
    end_with_parent()
    _Handler.names = Names(int(sys.argv[1]))
    _Handler.latency_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    # Far enough apart that no compression finds one again.
    source = random.Random(0)
    _Handler.digests = tuple(base64.b64encode(source.randbytes(16)).decode() for _ in range(10_007))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
