"""Sharding beside plain copies, webdataset's writer and bare decoding, as ratios from one run.

    python benchmarks/sharding.py                        # about 10 minutes
    python benchmarks/sharding.py --gigabytes 5 --rounds 5 --record benchmarks/results

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
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import describe_machine, ratios, record, run, summary, write_pictures
from contracts.process import available_cores

SHARD_BYTES = 128 << 20
# Fields of `sharding` in all arms: a single split, so that shards are as large as they were asked to be.
SECTION = {"splits": {"train": 1.0, "validation": 0.0, "test": 0.0}, "target_shard_bytes": SHARD_BYTES}

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
    parser.add_argument("--only", choices=("write", "decode"), default=None)
    options = parser.parse_args()
    decode_gigabytes = options.decode_gigabytes or options.gigabytes / 2
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = Path(name)
        report: dict[str, object] = {"about": _describe(options)}
        if options.only in (None, "write"):
            report["write"] = compare_writing(place, options.gigabytes, options)
        if options.only in (None, "decode"):
            report["decode"] = {
                f"{kilobytes} KB": compare_decoding(place, decode_gigabytes, kilobytes, options)
                for kilobytes in (100, 25)
            }
    print(json.dumps(report, indent=1))
    if options.record:
        record(options.record, "sharding", report)


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
    times, busy = _take_turns(arms, place / "out", options.rounds)
    shutil.rmtree(source)
    return {
        "files": num_files,
        "seconds": {name: summary(values) for name, values in times.items()},
        "processor seconds per GB": {
            name: summary([seconds / gigabytes for seconds in values]) for name, values in busy.items()
        },
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


def _run_stage(source: Path, out: Path, processes: int, *, verify: str) -> float:
    config = {
        "sharding": {"source": str(source), "verify": verify, **SECTION},
        "resources": {"beam_workers": processes},
    }
    command = [sys.executable, "-m", "sharding.task", "--config-json", json.dumps(config), "--root", str(out)]
    began = time.perf_counter()
    run(command)
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
