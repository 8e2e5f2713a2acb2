"""Reading of rows beside a Python CSV reader, and of texts beside map-style `datasets`, as ratios from one run.

    python benchmarks/reading_rows.py rows                          # 300,000 rows of 12 columns, slots of 256
    python benchmarks/reading_rows.py texts --peers FOLDER          # FOLDER is where `datasets` is installed, once
    python benchmarks/reading_rows.py rows --record benchmarks/results

Every arm reads one whole epoch into batches of tensors, in a process of its own, in turn, for several rounds; a ratio
is that of one round. Files come from memory: they were written just before. The clock begins before the loader is made,
so that what an arm does once (our table in memory, a peer's list of rows) counts; `--epochs` makes it count less.

Rows: numbers as float32, categories as places in a vocabulary, the label. `csv, streamed` is csv.reader in an
IterableDataset, in the order of the file (each worker parses the lines that are its own); `csv, in memory` is a
map-style dataset of the parsed lines in random order, its tensors made when a row is asked for. Ours is in random
order.

Texts: tokens by the same tokenizer file on one thread a process, at most 256 a text, padded to the longest of a batch
of 32 and up to a multiple of 8; rates are tokens a second, without padding. `datasets` reads its Arrow files by
memory-mapping, in random order, and tokenises a batch in the loader's collate function by encode_batch.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from benchmarks.figures import describe_machine, judge, quotients, record, summary
from benchmarks.reading import make_peers, run
from benchmarks.tables import FIELDS, NUMBERS, write_table

BATCH = {"rows": 256, "texts": 32}
MAX_LENGTH, MULTIPLE = 256, 8
VOCABULARY = 8000
PEERS = {"datasets": ("datasets==5.2.0",)}
_SPLITS = {"train": 1.0, "validation": 0.0, "test": 0.0}


def main() -> None:
    """Run what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rows", "texts", "arm"))
    parser.add_argument("arm", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, default=None, help="[default: 300,000 rows, 20,000 texts]")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--peers", type=Path, default=None, help="folder for the environment of datasets")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    options = parser.parse_args()
    if options.what == "arm":
        _run_arm(*options.arm[:2], workers=options.workers[0], epochs=options.epochs)
        return
    with tempfile.TemporaryDirectory() as name:
        found = (_compare_rows if options.what == "rows" else _compare_texts)(Path(name), options)
    print(json.dumps(found, indent=1))
    if options.record:
        record(options.record, "reading-rows", {options.what: found})


def _compare_rows(place: Path, options: argparse.Namespace) -> dict[str, object]:
    rows = options.samples or 300_000
    source = write_table(place, rows, "csv")
    shards = _shard(place, {"source": str(source), "fields": FIELDS}, {"name": "tabular_classification"})
    here = sys.executable
    arms = {
        "shardline": (here, "shards", shards),
        "shardline again": (here, "shards", shards),
        "shardline, not held in memory": (here, "shards-not-held", shards),
        "csv, streamed": (here, "csv-streamed", str(source)),
        "csv, in memory": (here, "csv-in-memory", str(source)),
    }
    found: dict[str, object] = {"about": {**describe_machine("torch", "numpy"), "rows": rows, "epochs": options.epochs}}
    for workers in options.workers:
        rates = _rates(arms, workers, options)
        again = quotients(rates["shardline"], rates["shardline again"])
        lines = {
            f"{ours} to {peer}": judge(quotients(rates[ours], rates[peer]), again, at_least=5)
            for ours in ("shardline", "shardline, not held in memory")
            for peer in ("csv, streamed", "csv, in memory")
        }
        found[f"{workers} workers"] = {"rows_per_s": {name: summary(rate) for name, rate in rates.items()}, **lines}
    return found


def _compare_texts(place: Path, options: argparse.Namespace) -> dict[str, object]:
    texts = options.samples or 20_000
    source = _write_texts(place, texts)
    fields = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    section = {"source": str(source), "fields": fields, "tokenizer": {"vocabulary": VOCABULARY}}
    shards = _shard(place, section, {"name": "text_classification", "arguments": {"max_length": MAX_LENGTH}})
    peers, missing = make_peers(options.peers, PEERS, sees_ours=True)
    arms = dict.fromkeys(("shardline", "shardline again"), (sys.executable, "shards", shards))
    for name, python in peers.items():
        run([python, str(Path(__file__)), "arm", "write-datasets", str(place)])
        arms[name] = (python, "datasets", str(place))
    machine = describe_machine("torch", "tokenizers", "numpy")
    about = {**machine, "peers": [one for of in PEERS.values() for one in of], "not installed": missing, "texts": texts}
    found: dict[str, object] = {"about": {**about, "epochs": options.epochs}}
    for workers in options.workers:
        rates = _rates(arms, workers, options)
        again = quotients(rates["shardline"], rates["shardline again"])
        found[f"{workers} workers"] = {
            "tokens_per_s": {name: summary(rate) for name, rate in rates.items()},
            **{
                f"shardline to {name}": judge(quotients(rates["shardline"], rates[name]), again, at_least=1)
                for name in peers
            },
        }
    return found


def _rates(arms: dict[str, tuple[str, str, str]], workers: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Run all arms in turn; return units a second of each, by round."""
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(options.rounds):
        for name, (python, kind, place) in arms.items():
            more = ["--workers", str(workers), "--epochs", str(options.epochs)]
            answer = json.loads(run([python, str(Path(__file__)), "arm", kind, place, *more]).splitlines()[-1])
            rates[name].append(answer["units"] / answer["seconds"])
            words = f"round {number + 1}, {workers} workers: {name} {rates[name][-1]:,.0f} a second"
            print(words, file=sys.stderr, flush=True)
    return rates


def _shard(place: Path, section: dict[str, Any], task: dict[str, Any]) -> str:
    """Shard a source; return the URI of the shards."""
    config = {"run": {"name": "reading"}, "sharding": {**section, "splits": _SPLITS}, "task": task}
    if task["name"] == "text_classification":
        config["model"] = {"architecture": "bert"}
    (place / "config.json").write_text(json.dumps(config))
    text, out = json.dumps(config), place / "shards"
    run([sys.executable, "-m", "sharding.task", "--config-json", text, "--output", str(out)])
    return out.as_uri()


def _write_texts(place: Path, texts: int) -> Path:
    """Write texts of 20 to 400 words of a vocabulary whose words are as frequent as those of a language."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(random.choice(letters, size)) for size in random.integers(2, 11, 20_000)]
    weights = 1 / np.arange(1, len(words) + 1)
    path = place / "texts.jsonl"
    with path.open("w") as stream:
        for size in random.integers(20, 401, texts).tolist():
            chosen = random.choice(len(words), size, p=weights / weights.sum())
            text = " ".join(words[number] for number in chosen)
            stream.write(json.dumps({"text": text, "label": "one" if size < 200 else "two"}) + "\n")
    return path


# --- arms, each in a process of its own -------------------------------------------------------------------------------


def _run_arm(kind: str, place: str, *, workers: int, epochs: int) -> None:
    if kind == "write-datasets":
        _write_datasets(Path(place))
        return
    make = _ARMS[kind](place)
    units, began = 0, time.perf_counter()
    for taken in make(workers, epochs):
        units += taken
    print(json.dumps({"units": units, "seconds": time.perf_counter() - began}))


Arm = Callable[[int, int], Iterator[int]]
"""Reads so many epochs with so many workers, and yields the units of each batch."""


def _shards(place: str, *, held: bool = True) -> Arm:
    from contracts.artifacts import ShardManifest
    from contracts.config import RunConfig
    from trainer.data import columns
    from trainer.data.loader import SlotDataset, make_loader, read_slots
    from trainer.data.order.cursor import slot_requests
    from trainer.data.order.resolve import FullOrder
    from trainer.data.reader import ShardReader
    from trainer.tasks.load import load_task

    if not held:
        columns.MOST_HELD_BYTES = 0
    config = RunConfig.model_validate_json((Path(place.removeprefix("file://")).parent / "config.json").read_text())
    manifest = ShardManifest.load(place)
    task = load_task(config, manifest, place)
    size = BATCH["texts" if manifest.tokenizer else "rows"]

    def read(workers: int, epochs: int) -> Iterator[int]:
        dataset = SlotDataset(ShardReader(place, manifest, "train"), task, 0)
        requests = slot_requests(
            0,
            order=FullOrder(len(dataset.reader), 0),
            epochs=epochs,
            global_batch_size=size,
            slot_size=size,
            rank=0,
            ranks=1,
        )
        loader = make_loader(dataset, requests, num_workers=workers, prefetch_factor=2, pin_memory=False)
        for slot in read_slots(loader):
            yield slot.units or len(slot.batch["label"])

    return read


class _Row:
    """Maps the texts of a line to tensors."""

    def __init__(self) -> None:
        self.places: dict[str, dict[str, int]] = {"city": {}, "code": {}, "label": {}}

    def __call__(self, line: list[str]) -> dict[str, torch.Tensor]:
        known = [
            places.setdefault(text, len(places))
            for places, text in zip(self.places.values(), line[NUMBERS:], strict=True)
        ]
        return {
            "numbers": torch.tensor([float(text) for text in line[:NUMBERS]]),
            "categories": torch.tensor(known[:-1]),
            "label": torch.tensor(known[-1]),
        }


class _Streamed(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, path: str) -> None:
        self.path, self.row = path, _Row()

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        with open(self.path, newline="") as stream:
            lines = csv.reader(stream)
            next(lines)
            yield from (self.row(line) for number, line in enumerate(lines) if number % every == first)


class _InMemory(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, path: str) -> None:
        self.row = _Row()
        with open(path, newline="") as stream:
            self.lines = list(csv.reader(stream))[1:]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return self.row(self.lines[place])


def _csv(make: Callable[[str], Any], *, shuffle: bool) -> Callable[[str], Arm]:
    def of(path: str) -> Arm:
        def read(workers: int, epochs: int) -> Iterator[int]:
            loader = DataLoader(make(path), batch_size=BATCH["rows"], num_workers=workers, shuffle=shuffle or None)
            for _ in range(epochs):
                for batch in loader:
                    yield len(batch["label"])

        return read

    return of


def _write_datasets(place: Path) -> None:
    from datasets import Dataset as ArrowDataset

    with (place / "texts.jsonl").open() as stream:
        rows = [json.loads(line) for line in stream]
    columns = {"text": [row["text"] for row in rows], "label": [int(row["label"] == "two") for row in rows]}
    ArrowDataset.from_dict(columns).save_to_disk(place / "arrow")


def _datasets(place: str) -> Arm:
    from datasets import load_from_disk
    from tokenizers import Tokenizer

    from contracts.artifacts import ShardManifest

    shards = Path(place) / "shards"
    entry = ShardManifest.load(shards.as_uri()).tokenizer
    assert entry is not None
    tokenizer = Tokenizer.from_file(str(shards / entry.name))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding(pad_id=entry.padding, pad_to_multiple_of=MULTIPLE)

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        found = tokenizer.encode_batch([row["text"] for row in rows])
        return {
            "tokens": torch.tensor([one.ids for one in found]),
            "mask": torch.tensor([one.attention_mask for one in found]),
            "label": torch.tensor([row["label"] for row in rows]),
        }

    def read(workers: int, epochs: int) -> Iterator[int]:
        rows = load_from_disk(str(Path(place) / "arrow"))
        loader = DataLoader(rows, BATCH["texts"], shuffle=True, num_workers=workers, collate_fn=collate)
        for _ in range(epochs):
            for batch in loader:
                yield int(batch["mask"].sum())

    return read


_ARMS: dict[str, Callable[[str], Arm]] = {
    "shards": _shards,
    "shards-not-held": lambda place: _shards(place, held=False),
    "csv-streamed": _csv(_Streamed, shuffle=False),
    "csv-in-memory": _csv(_InMemory, shuffle=True),
    "datasets": _datasets,
}


if __name__ == "__main__":
    main()
