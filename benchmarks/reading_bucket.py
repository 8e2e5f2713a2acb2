"""Reading from a bucket beside the same reader on local files, webdataset and litdata, as ratios from one run.

    python benchmarks/reading_bucket.py                                   # no litdata
    python benchmarks/reading_bucket.py --peers FOLDER --record benchmarks/results

The bucket is rehearsal.gcs in a process of its own, on the same cores, with 30 ms to the first byte of an answer and
50 MB/s a stream; its CPU time is part of the result. Each arm is a process of its own, in turn, for several rounds;
ratios are those of a round, printed are median and range. Four parts:

    decode    samples/s with decoding: our reader from the bucket, nothing cached, to the same on warm local files
    resume    seconds to the first batch, nothing cached: at a third and near the end, to the start of the epoch
    bytes     MB/s without decoding: our reader with 4 streams to 4 x 50 MB/s; `gets` is what bare requests reach
    egress    bytes that leave the server in an epoch, to the bytes of the split, at 1, 2, 4 and 8 nodes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bucket_server import BUCKET, BYTES_PER_S, LATENCY_S, ServerProcess, Usage
from benchmarks.figures import describe_machine, ratios, summary
from benchmarks.pictures import write_pictures
from benchmarks.reading import PEERS, above_start, make_peers, run, shard, write_peer
from contracts.artifacts import ShardManifest

ARMS = Path(__file__).parent / "reading_bucket_arms.py"
STREAMS = 4
# Of the egress part: hundreds of shards, since streams cut shards at their ends.
EGRESS_SHARDS = 500


@dataclass(frozen=True)
class Arm:
    """A reader on a place."""

    kind: str
    place: str
    decoder: str
    python: str = sys.executable
    workers: int = 0
    options: tuple[str, ...] = ()

    def run(self, server: ServerProcess) -> tuple[dict[str, float], Usage]:
        """Return what the arm says, and what the server did for it."""
        command = [self.python, str(ARMS), self.kind, self.place, "--decoder", self.decoder]
        server.take()
        said = run([*command, "--workers", str(self.workers), *self.options], server.environment)
        return json.loads(said.splitlines()[-1]), server.take()


@dataclass
class Rounds:
    """What an arm took, round by round."""

    samples_per_s: list[float] = field(default_factory=list)
    megabytes_per_s: list[float] = field(default_factory=list)
    reader_cpu_s: list[float] = field(default_factory=list)
    server_cpu_share: list[float] = field(default_factory=list)
    server_cpu_s_per_gb: list[float] = field(default_factory=list)
    egress: list[float] = field(default_factory=list)

    def add(self, answer: dict[str, float], usage: Usage, total_bytes: int) -> None:
        """Take in a round of an arm that read `total_bytes`."""
        seconds = answer["seconds"]
        self.samples_per_s.append(answer["samples"] / seconds)
        self.megabytes_per_s.append(total_bytes / seconds / 1e6)
        self.reader_cpu_s.append(answer["cpu_s"])
        if usage.bytes_out:
            self.server_cpu_share.append(usage.cpu_s / seconds)
            self.server_cpu_s_per_gb.append(usage.cpu_s / usage.bytes_out * 1e9)
            self.egress.append(usage.bytes_out / total_bytes)

    def summary(self) -> dict[str, object]:
        """Return medians and ranges."""
        return {name: summary(values) for name, values in self.__dict__.items() if values}


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=3000, help="pictures of 50 KB to decode [default: 3000]")
    parser.add_argument("--megabytes", type=int, default=1000, help="to read as bytes only [default: 1000]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="with decoding")
    parser.add_argument("--peers", type=Path, default=None, help="folder for the environments of peers")
    parser.add_argument("--folder", type=Path, default=None, help="where to work [default: a temporary folder]")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--only", choices=("decode", "resume", "bytes", "egress"), default=None)
    options = parser.parse_args()
    report: dict[str, object] = {"about": _describe(options)}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = Path(name)
        peers, missing = _litdata(options.peers)
        report["not installed"] = missing
        if options.only in (None, "decode", "resume"):
            data = Data(place / "decode", files=options.files, file_bytes=50_000, peers=peers)
            with ServerProcess(data.buckets) as server:
                if options.only != "resume":
                    report["with decoding"] = {
                        f"{n} workers": compare(data.decoding(server, n), server, options.rounds, data.bytes)
                        for n in options.workers
                    }
                if options.only != "decode":
                    report["first batch, seconds"] = {f"{n} workers": resume(server, n) for n in options.workers}
        if options.only in (None, "bytes"):
            files = options.megabytes * 10
            data = Data(place / "bytes", files=files, file_bytes=100_000, peers=peers)
            with ServerProcess(data.buckets) as server:
                found = compare(data.bytes_only(server), server, options.rounds, data.bytes)
            report["bytes only"] = found
        if options.only in (None, "egress"):
            report["egress"] = egress(place / "egress")
    text = json.dumps(report, indent=1)
    print(text)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        part = f"-{options.only}" if options.only else ""
        (options.record / f"reading-bucket{part}-{datetime.now(UTC):%Y-%m-%d}.json").write_text(text + "\n")


class Data:
    """Pictures, their shards on disk and in a bucket folder, and what the peers want instead."""

    def __init__(self, place: Path, *, files: int, file_bytes: int, peers: dict[str, str]) -> None:
        self.peers = peers
        self._place = place
        write_pictures(place / "raw", total_bytes=files * file_bytes, file_bytes=file_bytes)
        self.local = shard(place)
        self.buckets = place / "buckets"
        manifest = ShardManifest.load(self.local)
        self._names = [one.name for one in manifest.shards]
        self.bytes = sum(one.bytes for one in manifest.shards)
        _link(place / "out", self.buckets / BUCKET / "shards")
        for name, python in peers.items():
            for decoder in ("ours", "own") if name == "litdata" else ():
                write_peer(place, name, python, decoder)
                _link(place / f"{name}-{decoder}", self.buckets / BUCKET / f"{name}-{decoder}")
        for path in place.glob("out/*.tar"):
            # Warm.
            path.read_bytes()

    def decoding(self, server: ServerProcess, workers: int) -> dict[str, Arm]:
        """Return the arms that decode; ratios are to the first."""
        urls = self._urls(server)
        arms = {
            "local": Arm("shards", self.local, "ours", workers=workers),
            "local again": Arm("shards", self.local, "ours", workers=workers),
            "shardline": Arm("shards", f"gs://{BUCKET}/shards", "ours", workers=workers),
        }
        for decoder, words in (("ours", "our decoder"), ("own", "its own")):
            arms[f"webdataset, {words}"] = Arm("webdataset", urls, decoder, workers=workers)
            for name, python in self.peers.items():
                arms[f"{name}, {words}"] = Arm(name, f"gs://{BUCKET}/{name}-{decoder}", decoder, python, workers)
        return arms

    def bytes_only(self, server: ServerProcess) -> dict[str, Arm]:
        """Return the arms that only read bytes: 4 streams, or loader processes that have one each; and fewer."""
        four = ("--streams", str(STREAMS))
        shards = f"gs://{BUCKET}/shards"
        arms = {
            "local": Arm("shards", self.local, "none"),
            "gets": Arm("gets", shards, "none", options=four),
            "shardline": Arm("shards", shards, "none", options=four),
            "shardline, 2 workers": Arm("shards", shards, "none", workers=2, options=four),
            "shardline, streams chosen": Arm("shards", shards, "none"),
        }
        for workers in (0, STREAMS):
            arms[f"webdataset, {workers} workers"] = Arm("webdataset", self._urls(server), "none", workers=workers)
            for name, python in self.peers.items():
                place = f"gs://{BUCKET}/{name}-ours"
                arms[f"{name}, {workers} workers"] = Arm(name, place, "none", python, workers)
        return arms

    def _urls(self, server: ServerProcess) -> str:
        path = self._place / "urls"
        path.write_text("\n".join(f"{server.endpoint}/{BUCKET}/shards/{name}" for name in self._names))
        return str(path)


def compare(arms: dict[str, Arm], server: ServerProcess, rounds: int, total_bytes: int) -> dict[str, object]:
    """Run all arms in turn; return what each took, and ratios of ours."""
    found = {name: Rounds() for name in arms}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name, arm in arms.items():
            if name in failed:
                continue
            try:
                answer, usage = arm.run(server)
            except subprocess.CalledProcessError as error:
                said = error.stderr.strip().splitlines()
                failed[name] = next((line for line in reversed(said) if "Error" in line), said[-1])[:400]
                continue
            found[name].add(answer, usage, total_bytes)
            words = f"{found[name].samples_per_s[-1]:.0f} samples/s, {found[name].megabytes_per_s[-1]:.1f} MB/s"
            served = f"server {usage.cpu_s:.2f} s CPU for {usage.bytes_out / 1e6:.0f} MB in {usage.requests} requests"
            print(f"round {number + 1}, {arm.workers} workers: {name} {words}; {served}", file=sys.stderr, flush=True)
    kept = {name: rounds for name, rounds in found.items() if name not in failed}
    ours = found["shardline"]
    limit = [STREAMS * BYTES_PER_S / 1e6] * len(ours.megabytes_per_s)
    return {
        "arms": {name: rounds.summary() for name, rounds in kept.items()},
        "shardline to": {
            name: ratios(ours.samples_per_s, rounds.samples_per_s)
            for name, rounds in kept.items()
            if rounds is not ours
        },
        f"to {STREAMS} x {BYTES_PER_S / 1e6:.0f} MB/s": {
            name: ratios(rounds.megabytes_per_s, limit) for name, rounds in kept.items()
        },
        "failed": failed,
    }


def resume(server: ServerProcess, workers: int) -> dict[str, object]:
    """Return the time to the first batch at three places, and what the later ones take above the start."""
    command = [sys.executable, str(ARMS), "resume", f"gs://{BUCKET}/shards", "--workers", str(workers)]
    return above_start(json.loads(run(command, server.environment).splitlines()[-1]))


def egress(place: Path) -> dict[str, float]:
    """Return the bytes that leave the bucket in an epoch to those of the split, by the number of nodes."""
    # What tests/trainer/data/bucket/test_egress.py asserts, at its size.
    from tests.trainer.data.nodes import read_as_nodes
    from tests.trainer.data.synthetic import write_shards

    write_shards(place / "buckets" / BUCKET / "shards", shards=EGRESS_SHARDS, samples=64, sample_bytes=2000)
    found = {}
    with ServerProcess(place / "buckets", latency_s=0.0, bytes_per_s=None) as server:
        os.environ.update(server.environment)
        for nodes in (1, 2, 4, 8):
            server.take()
            total = read_as_nodes(f"gs://{BUCKET}/shards", place / str(nodes), nodes)
            found[f"{nodes} nodes"] = round(server.take(".tar").bytes_out / total, 4)
            print(f"egress at {nodes} nodes: {found[f'{nodes} nodes']}", file=sys.stderr, flush=True)
    return found


def _litdata(folder: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of the peer that reads from a bucket by itself, with the client that it needs."""
    return make_peers(folder, {"litdata": (PEERS["litdata"], "google-cloud-storage")})


def _link(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).hardlink_to(path)


def _describe(options: argparse.Namespace) -> dict[str, object]:
    return {
        **describe_machine("torch", "webdataset", "simplejpeg", "google-cloud-storage"),
        "litdata": PEERS["litdata"],
        "files": options.files,
        "megabytes": options.megabytes,
        "rounds": options.rounds,
        "latency_s": LATENCY_S,
        "bytes_per_s": BYTES_PER_S,
    }


if __name__ == "__main__":
    main()
