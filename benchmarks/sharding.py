"""Sharding beside plain copies, webdataset's writer and bare decoding, as ratios from one run.

    python benchmarks/sharding.py                        # about 10 minutes
    python benchmarks/sharding.py --gigabytes 5 --rounds 5 --record benchmarks/results
    python benchmarks/sharding.py --former ../shardline-before        # beside the stage of another checkout
    python benchmarks/sharding.py --only report          # what the data report adds, over 10^6 rows and 10^5 images

Every arm works on the same files with as many processes, in turn, for several rounds; a ratio is that of one round, and
what is printed is the median of the rounds and their range. All arms have their bytes on the disk before they count as
done: shards by fsync, copies by sync after as many bytes as a shard has. The source is read once beforehand, so that it
comes from memory as far as it fits there. Processor seconds are those of the whole machine, so that no process of an
arm is missed. Run it on an otherwise idle machine: the load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import simplejpeg

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, ratios, summary
from benchmarks.pictures import write_pictures
from contracts.process import available_cores, thread_environment

SHARD_BYTES = 128 << 20
# Fields of `sharding` in all arms: a single split, so that shards are as large as they were asked to be.
SECTION = {"splits": {"train": 1.0, "validation": 0.0, "test": 0.0}, "target_shard_bytes": SHARD_BYTES}

TABLE = {
    "fields": {
        "town": {"column": "town", "kind": "category"},
        "size": {"column": "size", "kind": "number"},
        "label": {"column": "kind", "kind": "class"},
    },
}
# Runs alone in its process; memory is what the report takes beyond its imports.
REPORT = """
import json, resource, sys, time
from contracts.config import ValidateSection
from records.report.run import judge_data
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, began = peak(), time.perf_counter()
found = judge_data(sys.argv[1], sys.argv[2], sys.argv[3], ValidateSection())
compared = [one for one in found.comparisons if not one.same and not one.not_compared]
print(json.dumps([time.perf_counter() - began, peak() - before, len(compared)]))
"""

Arm = Callable[[], float]


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the source [default: 1]")
    parser.add_argument("--decode-gigabytes", type=float, default=None, help="for decoding [default: half of it]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=available_cores())
    parser.add_argument("--folder", type=Path, default=None, help="where to work [default: a temporary folder]")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--former", type=Path, default=None, help="another checkout, whose stage is an arm too")
    parser.add_argument("--only", choices=("write", "decode", "report"), default=None)
    parser.add_argument("--samples", type=int, default=1_000_000, help="rows for the report; a tenth as many images")
    options = parser.parse_args()
    decode_gigabytes = options.decode_gigabytes or options.gigabytes / 2
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = Path(name)
        report = {"about": _describe(options)}
        if options.only in (None, "write"):
            report["write"] = compare_writing(place, options.gigabytes, options)
        if options.only in (None, "decode"):
            report["decode"] = {
                f"{kilobytes} KB": compare_decoding(place, decode_gigabytes, kilobytes, options)
                for kilobytes in (100, 25)
            }
        if options.only == "report":
            report["report"] = {
                "table": measure_report(place, _write_rows, options.samples, options, TABLE),
                "images": measure_report(place, _write_small_pictures, options.samples // 10, options, {}),
            }
    text = json.dumps(report, indent=1)
    print(text)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        (options.record / f"sharding-{datetime.now(UTC):%Y-%m-%d}.json").write_text(text + "\n")


def compare_writing(place: Path, gigabytes: float, options: argparse.Namespace) -> dict[str, object]:
    """Compare the whole stage without checks with a copy and with webdataset."""
    source = place / "source"
    num_files = write_pictures(source, total_bytes=int(gigabytes * 1e9), file_bytes=100_000)
    files = _warm(source)
    processes = options.processes
    few = place / "few"
    write_pictures(few, total_bytes=4_000_000, file_bytes=100_000)
    arms: dict[str, Arm] = {
        "copy": lambda: _in_processes(_copy, files, source, place / "out", processes),
        "copy again": lambda: _in_processes(_copy, files, source, place / "out", processes),
        "stage": lambda: _run_stage(source, place / "out", processes, verify="none"),
        "webdataset": lambda: _in_processes(_write_webdataset, files, source, place / "out", processes),
        "start-up": lambda: _run_stage(few, place / "out", processes, verify="none"),
    }
    if options.former:
        former = options.former.resolve()
        arms["former stage"] = lambda: _run_stage(source, place / "out", processes, verify="none", checkout=former)
        arms["former start-up"] = lambda: _run_stage(few, place / "out", processes, verify="none", checkout=former)
    times, busy = _take_turns(arms, place / "out", options.rounds)
    shutil.rmtree(source)
    return {
        "files": num_files,
        "seconds": {name: summary(values) for name, values in times.items()},
        "processor seconds per GB": {
            name: summary([seconds / gigabytes for seconds in values]) for name, values in busy.items()
        },
        **({"former stage / stage": ratios(times["former stage"], times["stage"])} if options.former else {}),
        "copy / copy again": ratios(times["copy"], times["copy again"]),
        "copy / stage": ratios(times["copy"], times["stage"]),
        "copy / (stage - start-up)": ratios(times["copy"], _less(times["stage"], times["start-up"])),
        "webdataset / stage": ratios(times["webdataset"], times["stage"]),
        "webdataset / (stage - start-up)": ratios(times["webdataset"], _less(times["stage"], times["start-up"])),
    }


def compare_decoding(place: Path, gigabytes: float, kilobytes: int, options: argparse.Namespace) -> dict[str, object]:
    """Compare the whole stage with every image decoded with reading and decoding alone."""
    source = place / f"source{kilobytes}"
    num_files = write_pictures(source, total_bytes=int(gigabytes * 1e9), file_bytes=kilobytes * 1000)
    files = _warm(source)
    processes = options.processes
    few = place / f"few{kilobytes}"
    write_pictures(few, total_bytes=40 * kilobytes * 1000, file_bytes=kilobytes * 1000)
    arms: dict[str, Arm] = {
        "decode": lambda: _in_processes(_read_and_decode, files, source, place / "out", processes),
        "decode again": lambda: _in_processes(_read_and_decode, files, source, place / "out", processes),
        "stage": lambda: _run_stage(source, place / "out", processes, verify="decode"),
        "start-up": lambda: _run_stage(few, place / "out", processes, verify="decode"),
    }
    times, _ = _take_turns(arms, place / "out", options.rounds)
    shutil.rmtree(source)
    return {
        "files": num_files,
        "seconds": {name: summary(values) for name, values in times.items()},
        "decode again / decode": ratios(times["decode again"], times["decode"]),
        "stage / decode": ratios(times["stage"], times["decode"]),
        "(stage - start-up) / decode": ratios(_less(times["stage"], times["start-up"]), times["decode"]),
    }


def measure_report(
    place: Path,
    write: Callable[[Path, int], Path],
    samples: int,
    options: argparse.Namespace,
    section: dict[str, object],
) -> dict[str, object]:
    """Return what the data report takes of the stage's time, and its memory, beside an earlier state of the source."""
    line, shares, seconds, reports, memory = place / "line", [], [], [], []
    splits = {"train": 0.8, "validation": 0.1, "test": 0.1}
    for number in range(options.rounds + 1):
        # One sample more each time: other shards, and all the keys of before are found again.
        source = write(place / "source", samples + number)
        config = {"sharding": {"source": str(source), "splits": splits, **section}}
        config["resources"] = {"beam_workers": options.processes}
        command = [sys.executable, "-m", "sharding.task", "--config-json", json.dumps(config)]
        environment = {**os.environ, **thread_environment(1), "PYTHONPATH": str(Path(__file__).parents[1])}
        began = time.perf_counter()
        command += ["--line", str(line), "--run", f"{number:03d}"]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        took = time.perf_counter() - began
        if not number:
            continue
        shards = json.loads((line / "runs" / f"{number:03d}" / "results" / "shard.json").read_text())["uri"]
        alone = [sys.executable, "-c", REPORT, line.as_uri(), f"{number:03d}", shards]
        done = subprocess.run(alone, check=True, capture_output=True, env=environment)
        report_s, report_mb, compared = json.loads(done.stdout)
        assert compared == 1, "the report compared nothing"
        seconds.append(took)
        reports.append(report_s)
        memory.append(report_mb)
        shares.append(report_s / (took - report_s))
    shutil.rmtree(line)
    return {
        "samples": samples,
        "stage with its report, seconds": summary(seconds),
        "report, seconds": summary(reports),
        "report / stage without it": summary(shares),
        "report, MB": summary(memory),
    }


def _write_rows(source: Path, samples: int) -> Path:
    """Write a table anew; its first rows are the same each time."""
    draw = random.Random(1)
    path = source.with_suffix(".csv")
    with path.open("w") as stream:
        stream.write("town,size,kind\n")
        for number in range(samples):
            stream.write(f"{'abcdefgh'[draw.randrange(8)]},{draw.gauss(0, 1):.6f},{('low', 'high')[number % 2]}\n")
    return path


def _write_small_pictures(source: Path, samples: int) -> Path:
    """Write what is missing of so many images."""
    for number in range(samples):
        path = source / f"{number % 10}" / f"{number:07d}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
            path.write_bytes(simplejpeg.encode_jpeg(pixels))
    return source


def _take_turns(arms: dict[str, Arm], out: Path, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of each arm in each round, and the processor seconds of the machine meanwhile."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    busy: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            before = _processor_s()
            times[name].append(arm())
            busy[name].append(_processor_s() - before)
            print(f"round {number + 1}: {name} {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
    shutil.rmtree(out, ignore_errors=True)
    return times, busy


def _processor_s() -> float:
    """Return the seconds that all cores have worked since the machine started: user, nice, system, irq, softirq."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[place]) for place in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def _run_stage(
    source: Path, out: Path, processes: int, *, verify: str, checkout: Path = Path(__file__).parents[1]
) -> float:
    config = {
        "sharding": {"source": str(source), "verify": verify, **SECTION},
        "resources": {"beam_workers": processes},
    }
    command = [sys.executable, "-m", "sharding.task", "--config-json", json.dumps(config), "--root", str(out)]
    environment = {
        **os.environ,
        **thread_environment(1),
        "PYTHONPATH": str(checkout),
    }
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - began


def _in_processes(
    work: Callable[[list[Path], Path, Path], None], files: list[Path], source: Path, out: Path, processes: int
) -> float:
    out.mkdir(parents=True)
    context = get_context("fork")
    began = time.perf_counter()
    workers = [
        context.Process(target=work, args=(files[number::processes], source, out / str(number)))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return time.perf_counter() - began


def _copy(files: list[Path], source: Path, out: Path) -> None:
    for folder in source.iterdir():
        (out / folder.name).mkdir(parents=True)
    unsynced = 0
    for path in files:
        with open(path, "rb", 0) as stream:
            content = stream.read()
        with open(out / path.parent.name / path.name, "wb", 0) as stream:
            stream.write(content)
        unsynced += len(content)
        if unsynced >= SHARD_BYTES:
            os.sync()
            unsynced = 0
    os.sync()


def _write_webdataset(files: list[Path], source: Path, out: Path) -> None:
    import webdataset

    out.mkdir()

    def sync(name: str) -> None:
        with open(name, "rb") as stream:
            os.fsync(stream.fileno())

    pattern = str(out / "%05d.tar")
    with webdataset.ShardWriter(pattern, maxcount=10**9, maxsize=SHARD_BYTES, post=sync, verbose=0) as writer:
        for number, path in enumerate(files):
            label = int(path.parent.name[-2:])
            description = {"path": str(path), "label": label}
            writer.write({"__key__": f"{number:09d}", "jpg": path.read_bytes(), "cls": label, "json": description})


def _read_and_decode(files: list[Path], source: Path, out: Path) -> None:
    from records.decode import decode

    for path in files:
        with open(path, "rb", 0) as stream:
            decode(stream.read())


def _warm(source: Path) -> list[Path]:
    files = sorted(source.glob("*/*.jpg"))
    for path in files:
        path.read_bytes()
    return files


def _less(times: list[float], starts: list[float]) -> list[float]:
    return [one - start for one, start in zip(times, starts, strict=True)]


def _describe(options: argparse.Namespace) -> dict[str, object]:
    return {
        **describe_machine("apache-beam", "webdataset", "simplejpeg", "google-crc32c"),
        "gigabytes": options.gigabytes,
        "processes": options.processes,
        "rounds": options.rounds,
    }


if __name__ == "__main__":
    main()
