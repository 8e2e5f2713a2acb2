"""The GPU check: every path that needs a GPU, in one command and one dated JSON: `python -m benchmarks.gpu`.

    make test-gpu                                      on a GPU where there is one, else on the CPU
    make test-gpu DEVICE=cpu                           the lines that need a GPU read "not run"
    python -m benchmarks.gpu --only fp32,resume --keep work --set train.optimizer=sgd

Each line (lines.py) is a process with a time limit, so that out of memory, a hang or a crash is its result and ends
nothing else. The whole is bounded too: what was not begun in time reads "not run". On a GPU the result is
benchmarks/results/gpu-DEVICE-DATE.json, on a CPU a file in the folder of temporary files; --output says otherwise.

Exit code 0: no line failed, and on a GPU one passed. 1: a line failed, or on a GPU none passed. 2: --device cuda
without a GPU. docs/gpu.md lists the paths and when each last ran.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.lines import LINES, Line
from benchmarks.gpu.setting import (
    LARGE_GPU_BYTES,
    REPOSITORY,
    Config,
    Setting,
    child_environment,
    find_missing,
    make_setting,
    module_command,
)

FORMAT = 1
# Lines whose rates stand beside the peers'.
RATED = ("fp32", "bf16", "channels-last")
# Lines whose times nobody compares, at a time, on a machine that has the cores and the memory.
SIDE_BY_SIDE = 4

Result = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lines that are asked for, write the result and return the exit code."""
    options = parse(arguments)
    deadline, started = time.monotonic() + options.limit_s, datetime.now(UTC)
    machine = json.loads(_run(module_command("benchmarks.gpu.machine"), child_environment(on_gpu=True)))
    on_gpu = machine["gpus"] > 0 and options.device != "cpu"
    if options.device == "cuda" and not on_gpu:
        print(f"--device cuda, but there is no GPU: {machine.get('why_no_gpu')}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        setting = make_setting(machine, folder, on_gpu=on_gpu, changes=options.set)
        results = Runner(setting, options.only, deadline).run()
    result = {
        "format": FORMAT,
        "date": f"{started:%Y-%m-%d %H:%M} UTC",
        "commit": options.commit or _commit(),
        "device": machine["device"] if on_gpu else None,
        "gpus": machine["gpus"] if on_gpu else 0,
        "capability": machine["capability"] if on_gpu else None,
        "driver": machine["driver"] if on_gpu else None,
        "cores": setting.cores,
        "versions": machine["versions"],
        "ranks": setting.ranks,
        "global_batch_size": setting.global_batch_size,
        "model": setting.config["model"],
        "seconds": round(options.limit_s - (deadline - time.monotonic()), 1),
        "lines": results,
        "rates": rates(results),
    }
    path = options.output or default_output(setting, started, partial=bool(options.only or options.changes))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    # Logs and errors name folders of this machine, which are nobody's business.
    for place, name in ((folder, "WORK"), (REPOSITORY, "."), (sys.prefix, "PYTHON"), (Path.home(), "HOME")):
        text = text.replace(str(place), name)
    path.write_text(text + "\n")
    return report(result, path)


class Runner:
    """Runs lines in processes of their own.

    Args:
        setting: Of this run.
        only: Names of the lines to run; empty: all.
        deadline: time.monotonic() at which nothing runs any more.
    """

    def __init__(self, setting: Setting, only: Sequence[str], deadline: float) -> None:
        self._setting, self._only, self._deadline = setting, only, deadline
        self._environment = child_environment(on_gpu=setting.on_gpu)

    def run(self) -> list[Result]:
        """Return the result of every line, in the order of the table."""
        found: dict[str, Result] = {}
        wanted = []
        for line in LINES:
            if reason := self._why_not(line):
                found[line.name] = _result(line, "not run", reason)
            else:
                wanted.append(line)
        if wanted and (fault := self._write_shards()):
            found |= {
                line.name: _result(line, "failed", f"the shards could not be written: {fault}") for line in wanted
            }
            wanted = []
        for line in wanted:
            if line.alone:
                found[line.name] = self._run_line(line)
        # They use the trainings above. Where those were not asked for, two would begin the same one.
        beside = SIDE_BY_SIDE if not self._only and self._setting.memory_bytes >= LARGE_GPU_BYTES else 1
        with ThreadPoolExecutor(beside) as pool:
            others = sorted((line for line in wanted if not line.alone), key=lambda line: -line.limit_s)
            found |= dict(zip((line.name for line in others), pool.map(self._run_line, others), strict=True))
        return [found[line.name] for line in LINES]

    def _why_not(self, line: Line) -> str:
        if line.without_gpu and not self._setting.on_gpu:
            return line.without_gpu
        if self._only and line.name not in self._only:
            return "not asked for (--only)"
        missing = find_missing(line.needs)
        return f"not installed: {', '.join(missing)}" if missing else ""

    def _write_shards(self) -> str:
        if self._setting.shards.exists():
            return ""
        try:
            _run(module_command("benchmarks.gpu.shards", self._setting.to_json()), self._environment)
        except subprocess.SubprocessError as error:
            return f"{error}: {str(getattr(error, 'stderr', ''))[-1000:]}"
        return ""

    def _run_line(self, line: Line) -> Result:
        left = self._deadline - time.monotonic()
        if left < 10:
            return _result(line, "not run", "the time limit of the whole check was spent (--limit-s)")
        began, limit_s = time.monotonic(), min(line.limit_s, left)
        print(f"{line.name} ...", file=sys.stderr, flush=True)
        process = subprocess.Popen(
            module_command("benchmarks.gpu.lines", line.name, self._setting.to_json()),
            env=self._environment,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # Stages and ranks end with what started them, also those in sessions of their own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _, err = process.communicate()
            found: Result = {
                "status": "failed",
                "why": f"did not end within {limit_s:.0f} s",
                "details": {"log": _log(err)},
            }
        else:
            try:
                found = json.loads(out.splitlines()[-1])
            except (IndexError, ValueError):
                why = f"the process ended with {process.returncode} and said nothing"
                found = {"status": "failed", "why": why, "details": {"log": _log(err)}}
        return _result(line, found["status"], found["why"], time.monotonic() - began, found["details"])


def rates(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return samples per second of our training and its peers by variant, and ours over theirs."""
    measured = {result["name"]: result["details"].get("samples_per_s") for result in results}
    found: dict[str, dict[str, float]] = {}
    for variant in RATED:
        ours = measured[variant]
        if ours is None:
            continue
        found[variant] = {"shardline": ours}
        for peer, name in (("bare-ddp", "bare_ddp"), ("lightning", "lightning")):
            if theirs := (measured[peer] or {}).get(variant):
                found[variant] |= {name: theirs, f"over_{name}": round(ours / theirs, 3)}
    return found


def default_output(setting: Setting, date: datetime, *, partial: bool) -> Path:
    """Return where the result goes: with the others where it is of a GPU and whole, else to temporary files."""
    slug = re.sub(r"[^a-z0-9]+", "-", setting.device_name.lower()).strip("-")
    whole = setting.on_gpu and not partial
    folder = REPOSITORY / "benchmarks" / "results" if whole else Path(tempfile.mkdtemp(prefix="gpu-check-"))
    return folder / f"gpu-{slug}-{date:%Y-%m-%d}.json"


def report(result: Result, path: Path) -> int:
    """Print the result as a table, and where it is; return the exit code."""
    counts = dict.fromkeys(("passed", "failed", "not run"), 0)
    for line in result["lines"]:
        counts[line["status"]] += 1
        why = line["why"].partition("\n")[0]
        print(f"{line['name']:<18} {line['status']:<8} {line['seconds']:6.1f} s  {why}")
    for variant, values in result["rates"].items():
        print(f"samples/s, {variant}: {', '.join(f'{name} {value:g}' for name, value in values.items())}")
    summary = ", ".join(f"{number} {status}" for status, number in counts.items())
    print(f"{result['device'] or 'no GPU'}: {summary} in {result['seconds']:.0f} s\n{path}")
    return int(counts["failed"] > 0 or (result["device"] is not None and counts["passed"] == 0))


def _result(line: Line, status: str, why: str, seconds: float = 0.0, details: Any = None) -> Result:
    checked = (line.run.__doc__ or "").strip().partition("\n")[0]
    return {
        "name": line.name,
        "status": status,
        "why": why,
        "checked": checked,
        "seconds": round(seconds, 1),
        "details": details or {},
    }


def _run(command: Sequence[str], environment: dict[str, str], limit_s: float = 90) -> str:
    done = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=limit_s
    )
    return done.stdout


def _log(said: str) -> str:
    """Return the end of what a case printed, and of the log of the stage that it ran last."""
    paths = re.findall(r"^log: (.+)$", said, re.MULTILINE)
    with suppress(IndexError, OSError):
        said += Path(paths[-1]).read_text(errors="replace")
    return said[-3000:]


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Take the command line apart; `set` holds the changes of the configuration by section."""
    names = [line.name for line in LINES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--output", type=Path, default=None, help="file for the result")
    parser.add_argument("--only", default="", help=f"lines to run, with commas, of: {', '.join(names)}")
    parser.add_argument("--limit-s", type=float, default=540, help="seconds of the whole check [default: 540]")
    parser.add_argument("--keep", type=Path, default=None, help="work in this folder and keep it")
    parser.add_argument("--commit", default="", help="commit of the code, where this is no git repository")
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for every training"
    )
    options = parser.parse_args(arguments)
    options.only = [name.strip() for name in options.only.split(",") if name.strip()]
    if unknown := sorted(set(options.only) - set(names)):
        parser.error(f"--only {', '.join(unknown)}: no such line; there are {', '.join(names)}")
    options.set = _read_changes(options.changes, parser)
    return options


def _read_changes(texts: Sequence[str], parser: argparse.ArgumentParser) -> Config:
    changes: Config = {}
    for text in texts:
        name, equals, value = text.partition("=")
        section, dot, key = name.partition(".")
        if not (equals and dot):
            parser.error(f"--set {text}: SECTION.KEY=VALUE, e.g. train.learning_rate=0.01")
        with suppress(ValueError):
            value = json.loads(value)
        changes.setdefault(section, {})[key] = value
    return changes


if __name__ == "__main__":
    sys.exit(main())
