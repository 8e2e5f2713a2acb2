"""`python -m rehearsal.gcs --root DIR --port 0 --bucket NAME`: serve until interrupted or terminated."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from pydantic import TypeAdapter

from contracts.process import end_with_parent
from rehearsal.gcs.faults import Rule
from rehearsal.gcs.server import BucketServer


def main() -> int:
    """Serve, and print the endpoint as the only line on stdout."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.gcs", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the buckets; plain files in it are objects")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket; may be repeated")
    parser.add_argument("--rules", type=Path, help="JSON list of rules: faults and costs")
    parser.add_argument("--access-log", type=Path, help="file of JSON lines to append to")
    parser.add_argument("--open", action="store_true", help="ask nobody for a token: for clients without credentials")
    parser.add_argument("--end-with-parent", action="store_true", help="end when the starting process ends")
    options = parser.parse_args()
    if options.end_with_parent:
        end_with_parent()
    rules = TypeAdapter(list[Rule]).validate_json(options.rules.read_bytes()) if options.rules else []
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with BucketServer(
        options.root,
        buckets=options.bucket,
        is_open=options.open,
        port=options.port,
        access_log=options.access_log,
        rules=rules,
    ) as server:
        sys.stdout.write(server.endpoint + "\n")
        sys.stdout.flush()
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
