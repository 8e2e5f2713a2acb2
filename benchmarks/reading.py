"""Reading beside a plain folder of files, webdataset, litdata and mosaicml-streaming, as ratios from one run.

    python benchmarks/reading.py --files 3000                       # this environment: no litdata, no mosaicml
    python benchmarks/reading.py --peers FOLDER --record benchmarks/results

Every arm reads the same pictures (reading_arms.py says what work that is), each time in a process of its own, in turn,
for several rounds; a ratio is that of one round, and what is printed is the median of the rounds and their range. Files
come from memory: they are read once beforehand. litdata and mosaicml-streaming need other versions of what this project
needs: `--peers FOLDER` is where their environments are made, once; what cannot be installed is said. A start or a
resume is measured inside one process, positions in turn.

Reading from a bucket is benchmarks/reading_bucket.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, ratios, summary
from benchmarks.pictures import write_pictures
from contracts import storage
from contracts.process import thread_environment

REPOSITORY = Path(__file__).parents[1]
ARMS = Path(__file__).parent / "reading_arms.py"
# What trainer/data imports, beside the peer itself; torch is the one that pip finds for the peer.
SHARED = ("simplejpeg==1.9.0", "pillow==12.3.0", "pydantic", "google-crc32c", "PyYAML")
PEERS = {"litdata": "litdata==0.2.76", "mosaicml": "mosaicml-streaming==0.13.0"}
SECTION = {"splits": {"train": 1.0, "validation": 0.0, "test": 0.0}, "target_shard_bytes": 16 << 20}


@dataclass(frozen=True)
class Arm:
    """A reader on a place, with a decoder."""

    kind: str
    place: str
    decoder: str
    python: str = sys.executable

    def run(self, workers: int) -> float:
        """Return samples a second."""
        command = [self.python, str(ARMS), self.kind, self.place, "--workers", str(workers), "--decoder", self.decoder]
        answer = json.loads(run(command).splitlines()[-1])
        return float(answer["samples"] / answer["seconds"])


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=3000, help="number of pictures [default: 3000]")
    parser.add_argument("--kilobytes", type=int, default=50, help="size of a picture [default: 50]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--peers", type=Path, default=None, help="folder for the environments of peers")
    parser.add_argument("--folder", type=Path, default=None, help="where to work [default: a temporary folder]")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--only", choices=("decode", "bytes", "resume"), default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = Path(name)
        write_pictures(
            place / "raw", total_bytes=options.files * options.kilobytes * 1000, file_bytes=options.kilobytes * 1000
        )
        shards = shard(place)
        peers, missing = make_peers(options.peers, {name: (requirement,) for name, requirement in PEERS.items()})
        report: dict[str, object] = {"about": _describe(options), "not installed": missing}
        for path in (place / "raw").glob("*/*"):
            path.read_bytes()
        if options.only in (None, "decode"):
            arms = decoding_arms(place, shards, peers)
            report["with decoding"] = {f"{n} workers": compare(arms, n, options.rounds) for n in options.workers}
        if options.only in (None, "bytes"):
            arms = byte_arms(place, shards, peers)
            report["bytes only"] = {f"{n} workers": compare(arms, n, options.rounds) for n in options.workers}
        if options.only in (None, "resume"):
            report["first batch, seconds"] = {f"{n} workers": time_resume(shards, n) for n in options.workers}
    text = json.dumps(report, indent=1)
    print(text)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        (options.record / f"{datetime.now(UTC):%Y-%m-%d}-reading.json").write_text(text + "\n")


def decoding_arms(place: Path, shards: str, peers: dict[str, str]) -> dict[str, Arm]:
    """Return the arms that decode; ratios are to the first."""
    raw = str(place / "raw")
    arms = {
        "folder": Arm("folder", raw, "ours"),
        "folder again": Arm("folder", raw, "ours"),
        "shardline": Arm("shards", shards, "ours"),
        "webdataset, our decoder": Arm("webdataset", shards, "ours"),
        "webdataset, its own": Arm("webdataset", shards, "own"),
    }
    for name, python in peers.items():
        for decoder, words in (("ours", "our decoder"), ("own", "its own")):
            arms[f"{name}, {words}"] = Arm(name, write_peer(place, name, python, decoder), decoder, python)
    return arms


def byte_arms(place: Path, shards: str, peers: dict[str, str]) -> dict[str, Arm]:
    """Return the arms that only read bytes."""
    arms = {
        "folder": Arm("folder", str(place / "raw"), "none"),
        "folder again": Arm("folder", str(place / "raw"), "none"),
        "shardline": Arm("shards", shards, "none"),
        "webdataset": Arm("webdataset", shards, "none"),
    }
    for name, python in peers.items():
        arms[name] = Arm(name, write_peer(place, name, python, "ours"), "none", python)
    return arms


def compare(arms: dict[str, Arm], workers: int, rounds: int) -> dict[str, object]:
    """Run all arms in turn; return samples a second, and ratios to the folder and of ours to each."""
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            rates[name].append(arm.run(workers))
            words = f"round {number + 1}, {workers} workers: {name} {rates[name][-1]:.0f} samples/s"
            print(words, file=sys.stderr, flush=True)
    ours = rates["shardline"]
    return {
        "samples_per_s": {name: summary(values) for name, values in rates.items()},
        "to the folder": {name: ratios(values, rates["folder"]) for name, values in rates.items() if name != "folder"},
        "shardline to": {name: ratios(ours, values) for name, values in rates.items() if name != "shardline"},
    }


def time_resume(shards: str, workers: int) -> dict[str, object]:
    """Return the time to the first batch at three positions, and what the later ones take above the start."""
    command = [sys.executable, str(ARMS), "resume", shards, "--workers", str(workers)]
    return above_start(json.loads(run(command).splitlines()[-1]))


def above_start(found: dict[str, list[float]]) -> dict[str, object]:
    """Summarise seconds by place, and what each place takes above the start."""
    above = {
        name: summary([one - start for one, start in zip(values, found["start"], strict=True)])
        for name, values in found.items()
        if name != "start"
    }
    return {**{name: summary(values) for name, values in found.items()}, "above the start": above}


def shard(place: Path) -> str:
    """Write shards of the pictures; return their URI."""
    config = {"sharding": {"source": str(place / "raw"), **SECTION}}
    run([sys.executable, "-m", "sharding.task", "--config-json", json.dumps(config), "--output", str(place / "out")])
    return storage.normalise(place / "out")


def make_peers(
    folder: Path | None, wanted: dict[str, tuple[str, ...]], *, sees_ours: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreters of the environments of peers with what each wants, and why others have none.

    Args:
        folder: Where they are made, once; None: there are none.
        wanted: By name of the peer, what pip is asked for.
        sees_ours: They see this environment's packages, so that torch is the same; else they have what `SHARED` names.
    """
    if folder is None:
        return {}, dict.fromkeys(wanted, "no --peers folder was given")
    peers, missing = {}, {}
    for name, requirements in wanted.items():
        python = folder / name / "bin/python"
        try:
            if not python.exists():
                run([sys.executable, "-m", "venv", str(folder / name)])
            if sees_ours:
                (site,) = (folder / name).glob("lib/python*/site-packages")
                (site / "ours.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
            shared = () if sees_ours else SHARED
            run([str(python), "-m", "pip", "install", "--quiet", *requirements, *shared])
        except subprocess.CalledProcessError as error:
            missing[name] = error.stderr.strip().splitlines()[-1]
            continue
        peers[name] = str(python)
    return peers, missing


def write_peer(place: Path, name: str, python: str, decoder: str) -> str:
    """Write the pictures in a peer's format, once; return where."""
    out = place / f"{name}-{decoder}"
    if not out.exists():
        raw = str(place / "raw")
        run([python, str(ARMS), f"write-{name}", raw, "--out", str(out), "--decoder", decoder])
    return str(out)


def run(command: list[str], more: dict[str, str] | None = None) -> str:
    """Run a command on one thread, with more variables; return what it prints."""
    environment = {**os.environ, **thread_environment(1), "PYTHONPATH": str(REPOSITORY), **(more or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        done.check_returncode()
    return done.stdout


def _describe(options: argparse.Namespace) -> dict[str, object]:
    return {
        **describe_machine("torch", "webdataset", "simplejpeg", "pillow"),
        **PEERS,
        "files": options.files,
        "kilobytes": options.kilobytes,
        "rounds": options.rounds,
    }


if __name__ == "__main__":
    main()
