"""Checkpoints beside a bare copy, torch.distributed.checkpoint and torch.save, and what a vote costs, from one run.

    python benchmarks/checkpoints.py                                     # everything, about six minutes
    python benchmarks/checkpoints.py --only 25M --record benchmarks/results --notes "what is expected"

A process of one thread and one rank has a vision transformer and AdamW's state, and saves it in every way in turn, in
an order drawn anew each round; a ratio is that of one round. "held" is how long training stands still, "durable" how
long until the checkpoint would survive a loss of power. The bare copy and dcp.save run twice in each round: their ratio
to themselves (A/A) is what noise alone makes, and a line is decided only when its median lies within half of the line's
margin. The vote is that of two gloo ranks at the end of steps of 100 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.figures import describe_machine, judge, quotients, ratios, record, summary
from benchmarks.reading import run

ARMS = Path(__file__).parent / "checkpoints_arms.py"
SIZES = ("25M", "100M")
RANKS = 2
STEP_S = 0.1


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400, help="steps of the vote [default: 400]")
    parser.add_argument("--folder", type=Path, default=None, help="where to write [default: a temporary folder]")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--only", nargs="+", choices=(*SIZES, "votes"), default=[*SIZES, "votes"])
    parser.add_argument("--notes", default="", help="what was expected; kept with the result")
    options = parser.parse_args()
    about = {**describe_machine("torch"), "notes": options.notes}
    parts: dict[str, object] = {}
    for part in options.only:
        found = time_votes(options.steps) if part == "votes" else time_saves(part, options)
        parts[part] = {"about": about, **found}
    print(json.dumps(parts, indent=1))
    if options.record:
        record(options.record, "checkpoints", parts)


def time_saves(size: str, options: argparse.Namespace) -> dict[str, object]:
    """Return seconds of all ways to save a model of a size, and the lines."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        given = {"size": size, "folder": folder, "rounds": options.rounds}
        answer = json.loads(run([sys.executable, str(ARMS), "save", json.dumps(given)]).splitlines()[-1])
    held, durable = (
        {
            name: [one[name][kind] for one in answer["rounds"]]
            for name, seconds in answer["first"].items()
            if kind in seconds
        }
        for kind in ("held", "durable")
    )
    copies = quotients(held["copy again"], held["copy"])
    saves = quotients(durable["dcp.save again"], durable["dcp.save"])
    ours = held["shardline"]
    return {
        **answer["about"],
        "held, s": {name: summary(values) for name, values in held.items()},
        "durable, s": {name: summary(values) for name, values in durable.items()},
        "first save held, s": answer["first"]["shardline"]["held"],
        "held to a bare copy": judge(quotients(ours, held["copy"]), copies, at_most=1.5),
        "held to dcp.async_save": judge(quotients(ours, held["dcp.async_save"]), copies, at_most=1.1),
        "held to torch.save and fsync": ratios(ours, durable["torch.save"]),
        "durable to dcp.save": judge(quotients(durable["shardline"], durable["dcp.save"]), saves, at_most=1.2),
        "durable to torch.save and fsync": ratios(durable["shardline"], durable["torch.save"]),
    }


def time_votes(steps: int) -> dict[str, object]:
    """Return what a vote takes of a step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    given = {"steps": steps, "step_s": STEP_S}
    found: dict[str, list[float]] = json.loads(run([*command, str(ARMS), "votes", json.dumps(given)]).splitlines()[-1])
    # Votes are cast every few steps: a round is fifty of them, so that each has some.
    blocks = range(0, steps, 50)
    mean = {
        name: [statistics.fmean(values[at : at + 50]) / STEP_S for at in blocks]
        for name, values in found.items()
        if name.startswith("vote")
    }
    return {
        "step, s": summary(found["step"]),
        "a reduction of two numbers that is waited for, s": summary(found["all_reduce"]),
        "longest vote, s": max(found["vote"]),
        "share of a step of 100 ms": judge(mean["vote"], quotients(mean["vote again"], mean["vote"]), at_most=0.005),
    }


if __name__ == "__main__":
    main()
