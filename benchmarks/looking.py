"""How long a user waits for the page of a run, and for a list of a thousand runs.

    python benchmarks/looking.py [--record] [--rounds N] [--digits LINE]

Whole commands, as a user starts them: `shardline report` of the digits' run (one is made, unless --digits names a line)
and of a large run: a million scalar rows, 2,000 shards, 200 preemptions. The peer is TensorBoard's own reader
(EventAccumulator, all rows kept) on the events files of the large run, which draws nothing. The list is that of the
server of `shardline ui` over a thousand runs: the first answer, and those after it. An idle page is that of a run that
goes on while nothing changes, open in Chromium for a minute: processor time of the server, and bytes that it sent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
from playwright.sync_api import Request

from benchmarks.figures import describe_machine, quotients, record, summary
from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.scalars import SCALARS_FOLDER, part_name, scalars_line, start_line
from tests.browser import started_chromium
from tests.inspection.lines import START, plant

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CLI = [sys.executable, "-m", "pipelines.cli"]
ROWS, SHARDS, PREEMPTIONS, RUNS = 1_000_000, 2_000, 200, 1_000
TAGS = ("train/loss", "train/learning_rate", "train/samples_per_s", "data/time_percent", "validation/accuracy")
DIGITS_LINE_S, LARGE_LINE_S, LARGE_LINE_BYTES = 1.0, 4.0, 1_000_000
LIST_LINE_S, FIRST_LIST_LINE_S, IDLE_LINE_PERCENT, IDLE_LINE_BYTES = 0.3, 3.0, 2.0, 20_000
# What a page that is opened asks for is over by then.
SETTLED_S, WATCHED_S = 30.0, 60.0
_READ_BY_TENSORBOARD = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
found.Reload()
print(sum(len(found.Scalars(tag)) for tag in found.Tags()["scalars"]))
"""


def timed(command: list[str], folder: Path) -> tuple[float, str]:
    """Return the wall time of a command in seconds, and what it printed."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return time.monotonic() - began, done.stdout


def write_rows(training: Path) -> None:
    """Write the scalar rows as a training does: per attempt lines of JSON, and an events file, a row an event."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    folder, scalars = training / "tensorboard", training / SCALARS_FOLDER
    for each in (folder, scalars):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    steps = ROWS // len(TAGS)
    share = steps // (PREEMPTIONS + 1) + 1
    for attempt in range(PREEMPTIONS + 1):
        first = attempt * share
        events = [Event(wall_time=START + first, file_version="brain.Event:2")]
        log = SessionLog(status=SessionLog.START)
        events.append(Event(wall_time=START + first, step=first + 1, session_log=log))
        lines = [start_line(first, START + first)]
        for step in range(first + 1, min(first + share, steps) + 1):
            values = {tag: (place + 1) / (1 + step % 977) for place, tag in enumerate(TAGS)}
            lines.append(scalars_line(step, START + step, values))
            for tag, value in values.items():
                row = Summary.Value(tag=tag, simple_value=value)
                events.append(Event(wall_time=START + step, step=step, summary=Summary(value=[row])))
        (scalars / part_name(attempt + 1, 0)).write_bytes(b"".join(lines))
        name = f"events.out.tfevents.{int(START) + attempt}.machine.{attempt}.0"
        with (folder / name).open("wb") as stream:
            for event in events:
                stream.write(_framed(event.SerializeToString()))


def _framed(content: bytes) -> bytes:
    head = struct.pack("<Q", len(content))
    return head + _masked(head) + content + _masked(content)


def _masked(content: bytes) -> bytes:
    found = google_crc32c.value(content)
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def make_large(line: Path, shards: str) -> None:
    """Plant a large run: the documents of a small one, with the shards, rows and attempts of a large one."""
    planted = plant(line, shards, kind="fresh")
    folder = storage.local_path(planted.uris["shard"])
    manifest = json.loads((folder / "manifest.json").read_bytes())
    entry = manifest["shards"][0]
    more = [{**entry, "name": f"train-{number:05d}.tar"} for number in range(len(manifest["shards"]), SHARDS)]
    manifest["shards"] += more
    (folder / "manifest.json").write_text(json.dumps(manifest))
    training = storage.local_path(planted.uris["train"])
    write_rows(training)
    steps, share = ROWS // len(TAGS), ROWS // len(TAGS) // (PREEMPTIONS + 1) + 1
    at = START
    (line / "train" / "attempts" / planted.run_id / "events.jsonl").unlink()
    for attempt in range(PREEMPTIONS + 1):
        name = f"{planted.run_id}.{attempt:05d}"
        first = attempt * share
        told: list[dict[str, Any]] = [
            {"event": "start", "launched_at": at},
            {"event": "folder", "uri": planted.uris["train"], "fingerprint": "c" * 16},
            {"event": "life", "life": f"{attempt}", "started_at": at},
            {"event": "resume", "life": f"{attempt}", "step": first, "ranks": 8, "nodes": 2},
        ]
        for step in range(first, min(first + share, steps), 20):
            told.append({"event": "progress", "done": step, "total": steps, "unit": "steps", "message": "loss 0.1"})
            if step % 100 == 0:
                seconds = {"data": 0.5, "step": 9.0, "checkpoint": 0.1}
                told.append({"event": "spent", "life": f"{attempt}", "step": step, "seconds": seconds})
        if attempt == PREEMPTIONS:
            told.append({"event": "finish", "uri": planted.uris["train"], "made": "best checkpoint"})
        path = line / "train" / "attempts" / name / "events.jsonl"
        path.parent.mkdir(parents=True)
        with path.open("w") as stream:
            for event in told:
                at += 1
                stream.write(json.dumps({"time": at, "stage": "train", "attempt": name, **event}) + "\n")


def make_shards(folder: Path) -> str:
    """Write small real shards and return their URI."""
    from tests.conftest import small_config, write_pictures

    sharding = small_config(sharding={"source": str(write_pictures(folder / "raw-pictures"))})["sharding"]
    given = ["--output", str(folder / "shards"), "--config-json", json.dumps({"sharding": sharding})]
    # By command: beside this file lies a benchmark that is called as the package.
    subprocess.run([sys.executable, "-m", "sharding.task", *given], cwd=ROOT, check=True, capture_output=True)
    return storage.normalise(folder / "shards")


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, int]]:
    """Serve a root; return the address and the process."""
    server = subprocess.Popen([*CLI, "ui", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        yield address.rstrip("/"), server.pid
    finally:
        server.terminate()
        server.wait()


def time_list(root: Path, rounds: int) -> dict[str, object]:
    """Serve a root, and return the time of the first answer and of later ones, in seconds."""
    with serving(root) as (address, _):
        times = []
        for _ in range(rounds + 1):
            began = time.monotonic()
            with urllib.request.urlopen(f"{address}/api/runs") as answer:
                found = json.load(answer)
            times.append(time.monotonic() - began)
    count = len(found["runs"] if isinstance(found, dict) else found)
    if count != RUNS:
        raise SystemExit(f"the list has {count} runs instead of {RUNS}")
    return {"runs": RUNS, "first_s": round(times[0], 3), "later_s": summary(times[1:])}


def watch_idle(folder: Path, shards: str) -> dict[str, object]:
    """Open the page of a run that goes on in Chromium; return what a minute without news costs the server."""
    run = "20261122-070000-0001"
    staged = plant(folder / "staged" / "roses", shards, run_id=run, now=time.time() - 60).line
    line = folder / "idle" / "roses"
    line.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.inspection.ui.player", str(staged), str(line), run]
    player = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert player.stdin is not None and player.stdout is not None
    try:
        for _ in ("sharding", "training", "trained"):
            player.stdin.write("\n")
            player.stdin.flush()
            player.stdout.readline()
        with serving(line.parent) as (address, pid), started_chromium() as browser:
            page, sent = browser.new_page(), [0]

            def count(request: Request) -> None:
                sizes = request.sizes()
                sent[0] += sizes["responseBodySize"] + sizes["responseHeadersSize"]

            page.on("requestfinished", count)
            page.goto(f"{address}/run/roses/{run}")
            page.wait_for_timeout(SETTLED_S * 1000)
            opened, used, sent[0] = sent[0], processor_s(pid), 0
            page.wait_for_timeout(WATCHED_S * 1000)
            percent = 100 * (processor_s(pid) - used) / WATCHED_S
        return {"opened_bytes": opened, "core_percent": round(percent, 2), "bytes_per_minute": sent[0]}
    finally:
        player.kill()
        player.communicate()


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken, all threads, in seconds (proc_pid_stat(5))."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print, and write benchmarks/results/looking-DATE.json with --record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--digits", type=Path, help="line of a run of configs/digits.yaml")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        digits = options.digits
        if digits is None:
            raw = folder / "raw" / "digits"
            subprocess.run([sys.executable, str(ROOT / "examples" / "digits.py"), str(raw)], check=True)
            run = [*CLI, "run", str(ROOT / "configs" / "digits.yaml"), f"run.root={folder / 'runs'}"]
            subprocess.run(run, cwd=folder, check=True, capture_output=True)
            digits = folder / "runs" / "digits"
        shards = make_shards(folder)
        ShardManifest.load(shards)
        make_large(folder / "large" / "photos", shards)
        logs = folder / "large" / "photos" / "train" / ("c" * 16) / "tensorboard"
        page = folder / "page.html"
        arms = {
            "report of the digits": [*CLI, "report", str(digits.resolve()), "--output", str(page)],
            "report of the large run": [*CLI, "report", str(folder / "large" / "photos"), "--output", str(page)],
            "TensorBoard's reader": [sys.executable, "-c", _READ_BY_TENSORBOARD, str(logs)],
        }
        times: dict[str, list[float]] = {name: [] for name in arms}
        size: dict[str, int] = {}
        for number in range(options.rounds):
            for name, command in arms.items():
                seconds, printed = timed(command, folder)
                times[name].append(seconds)
                if name.startswith("report"):
                    size[name] = page.stat().st_size
                elif number == 0:
                    print(f"TensorBoard's reader found {printed.strip()} rows")
        for number in range(RUNS):
            name = f"20261122-{number // 60:02d}{number % 60:02d}00-{number:04d}"
            plant(folder / "many" / f"line-{number % 50:02d}", shards, kind="fresh", run_id=name, now=START + number)
        found: dict[str, object] = {
            "machine": describe_machine("tensorboard", "starlette", "uvicorn"),
            "wall_s": {name: summary(values) for name, values in times.items()},
            "bytes": size,
            "large report over TensorBoard's reader": summary(
                quotients(times["report of the large run"], times["TensorBoard's reader"])
            ),
            "list": time_list(folder / "many", options.rounds),
            "idle page": watch_idle(folder, shards),
            "lines": {
                "report of the digits, s": DIGITS_LINE_S,
                "report of the large run, s": LARGE_LINE_S,
                "report of the large run, bytes": LARGE_LINE_BYTES,
                "list, later, s": LIST_LINE_S,
                "list, first, s": FIRST_LIST_LINE_S,
                "idle page, percent of a core": IDLE_LINE_PERCENT,
                "idle page, bytes per minute": IDLE_LINE_BYTES,
            },
        }
    print(json.dumps(found, indent=1))
    if options.record:
        record(RESULTS, "looking", found)


if __name__ == "__main__":
    main()
