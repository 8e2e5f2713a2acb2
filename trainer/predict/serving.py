"""What every predict.py shares: samples come in, the model runs, answers go out. It lies beside predict.py.

Python 3.10, numpy and onnxruntime are all it needs; with --url not even the latter. Samples are named as arguments, in
--lines FILE (one a line), in --json-lines FILE (a JSON value a line; an empty line asks for the answers to those before
it) or in --manifest FILE (a table, CSV or JSON lines, with the column --column); FILE may be -, standard input. Answers
come in the order of the samples, in the form --format. A sample that cannot be used is named on stderr, all others are
answered, and the exit code is 2.

A program asks with --json-lines=- --format=json: a line for each sample, whatever kind it is.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING or __package__:
    from trainer.predict.reading import EXIT_BAD_INPUT
    from trainer.predict.reading import Asked as Asked
    from trainer.predict.reading import BadSample as BadSample
    from trainer.predict.reading import Kind as Kind
    from trainer.predict.reading import read_samples as read_samples
    from trainer.predict.reading import read_table as read_table
    from trainer.predict.reading import shorten as shorten
    from trainer.predict.runtimes import BadFolder, BadInput, Graph, Runner, open_graph, open_server
else:
    # The shipped file, which is no part of a package.
    from reading import EXIT_BAD_INPUT
    from reading import Asked as Asked
    from reading import BadSample as BadSample
    from reading import Kind as Kind
    from reading import read_samples as read_samples
    from reading import read_table as read_table
    from reading import shorten as shorten
    from runtimes import BadFolder, BadInput, Graph, Runner, open_graph, open_server

FORMATS = ("text", "json", "csv")

Take = Callable[[str], Path]
"""Returns where a file of the export lies."""

_PROGRESS_S = 1.0


class Model(Protocol):
    """A model's files besides its graph: how samples become inputs, and outputs answers."""

    @property
    def graph(self) -> Graph:
        """What is said of the graph."""

    @property
    def batch(self) -> int:
        """Samples at a time."""

    def expand(self, argument: str) -> Iterator[Asked]:
        """Yield the samples that an argument names."""

    def prepare(self, asked: Asked) -> Any:
        """Return what `answer` takes of a sample.

        Raises:
            BadSample: It cannot be used.
        """

    def answer(self, samples: Sequence[Any], run: Runner, top: int | None) -> list[dict[str, Any]]:
        """Return what is said of each sample: `label` and `score`, `predictions` with such, or `error`."""

    def notes(self) -> Iterable[str]:
        """Return what else is said at the end."""


def run_program(kind: Kind, open_model: Callable[[Take], Model], program: str, description: str) -> int:
    """Run a predict.py, and return its exit code.

    Args:
        kind: Of its samples.
        open_model: Reads what lies beside it.
        program: Its own path.
        description: First line of its help.
    """
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add_options(parser, kind)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime [1]")
    parser.add_argument("--model", metavar="FILE", help="another model of the same folder")
    options = parser.parse_args()
    check_options(parser, options, kind)
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: allowed are whole numbers from 1")
    # Not the link's folder, where the program is reached by one.
    folder = Path(program).resolve().parent
    try:
        model = open_model(lambda name: folder / name)
        if options.url is not None:
            run = open_server(options.url, model.graph)
        elif not (folder / model.graph.path).is_file():
            raise BadFolder(f"{folder / model.graph.path} is not there", allowed="the model that the export names")
        else:
            run = open_graph(folder / (options.model or model.graph.path), model.graph, options.threads)
        code = print_answers(kind, model, run, options)
        sys.stdout.flush()
    except BadInput as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        # Whoever reads the answers has seen enough: nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BAD_INPUT
    return code


# --- options ----------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, kind: Kind | None = None) -> None:
    """Add the options that say what is asked, and how it is answered.

    Args:
        parser: Of the command.
        kind: Of its samples; None: known only when the export was read.
    """
    argument = kind.argument if kind else "SAMPLE"
    parser.add_argument("samples", nargs="*", metavar=argument)
    parser.add_argument("--lines", "--paths-from", metavar="FILE", help="a file with one sample a line; - is stdin")
    parser.add_argument("--json-lines", metavar="FILE", help="a file with one sample a line, as JSON; - is stdin")
    parser.add_argument("--manifest", metavar="FILE", help="a table of samples: CSV or JSON lines; - is stdin")
    parser.add_argument("--column", metavar="NAME", help="column of the manifest that holds the sample")
    parser.add_argument("--format", choices=FORMATS, default="text", help="of answers [text]")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    parser.add_argument("--url", metavar="URL", help="ask a running Triton: http://HOST:8000")
    parser.add_argument("--top", type=int, metavar="K", help="most labels of a sample")
    # By its name, where a file of samples that is not on this machine was copied to.
    parser.set_defaults(copies={})


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace, kind: Kind) -> None:
    """Refuse options that say nothing, or that samples of this kind do not have; the program ends with 2."""
    if options.top is not None and options.top < 1:
        parser.error(f"--top {options.top}: allowed are whole numbers from 1")
    if options.column is not None and options.manifest is None:
        parser.error(f"--column {options.column}: it is for a --manifest with a column of {kind.noun}")
    if not options.samples and options.lines is None and options.json_lines is None and options.manifest is None:
        parser.error(f"none of {kind.noun} was given: name some, or a file with --lines, --json-lines or --manifest")


# --- answers ----------------------------------------------------------------------------------------------------------


def answers(
    model: Model, run: Runner, asked: Iterable[Asked | None], top: int | None
) -> Iterator[tuple[Asked, dict[str, Any]]]:
    """Yield samples with what is said of them, in their order; a batch at a time is in memory.

    Args:
        model: Prepares and answers.
        run: Runs the graph.
        asked: The samples; None asks for the answers to those before it.
        top: Most labels of a sample; None: what the model says by itself.
    """
    waiting: list[tuple[Asked, Any]] = []
    for sample in asked:
        if sample is not None:
            waiting.append((sample, _prepared(model, sample)))
        if sample is None or len(waiting) == model.batch:
            yield from _answered(model, run, waiting, top)
            waiting = []
    yield from _answered(model, run, waiting, top)


def _prepared(model: Model, asked: Asked) -> Any:
    if isinstance(asked.value, BadSample):
        return asked.value
    try:
        return model.prepare(asked)
    except BadSample as error:
        return error


def _answered(
    model: Model, run: Runner, waiting: Sequence[tuple[Asked, Any]], top: int | None
) -> Iterator[tuple[Asked, dict[str, Any]]]:
    good = [prepared for _, prepared in waiting if not isinstance(prepared, BadSample)]
    found = iter(model.answer(good, run, top) if good else ())
    for asked, prepared in waiting:
        yield asked, {"error": str(prepared)} if isinstance(prepared, BadSample) else next(found)


def print_answers(kind: Kind, model: Model, run: Runner, options: argparse.Namespace) -> int:
    """Print the answers to what options name; return the exit code."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    told, failed, number, began = time.monotonic(), 0, 0, time.monotonic()
    shows_progress = sys.stderr.isatty() and not sys.stdout.isatty()
    for number, (asked, answer) in enumerate(
        answers(model, run, read_samples(options, kind, model.expand), options.top), start=1
    ):
        if options.format == "json":
            print(json.dumps({**({kind.key: asked.name} if kind.key else {}), **answer}), flush=True)
        elif options.format == "csv":
            write_csv(writer, asked.name, answer, with_header=number == 1)
        elif "error" not in answer:
            print(f"{asked.name}: {in_words(answer)}", flush=True)
        if "error" in answer:
            failed += 1
            print(f"error: {asked.name}: {answer['error']}", file=sys.stderr, flush=True)
        if shows_progress and time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            print(f"\r{number} {kind.noun}, {number / (told - began):.0f}/s ", end="", file=sys.stderr, flush=True)
    if shows_progress:
        print(f"\r{number} {kind.noun}, {time.monotonic() - began:.1f} s ", file=sys.stderr)
    for note in model.notes():
        print(note, file=sys.stderr)
    if failed:
        print(
            f"error: {failed} of {number} {kind.noun} could not be used\n  allowed: {kind.allowed}\n"
            "  to do: correct them, or leave them out",
            file=sys.stderr,
        )
    return EXIT_BAD_INPUT if failed else 0


def in_words(answer: Mapping[str, Any]) -> str:
    """Return an answer as text that is part of a line."""
    words = []
    for one in answer.get("predictions", [answer]):
        limit = one.get("threshold")
        below = f" (below {limit:.4f})" if limit is not None and one["score"] < limit else ""
        words.append(f"{one['label']} {one['score']:.4f}{below}")
    return ", ".join(words) or "none"


def write_csv(writer: Any, name: str, answer: Mapping[str, Any], *, with_header: bool) -> None:
    """Write a row for each label of a sample; of one without any, a row with the error."""
    if with_header:
        writer.writerow(["sample", "label", "score", "error"])
    for one in ([answer] if "error" in answer else answer.get("predictions", [answer])) or [{}]:
        writer.writerow([name, *(one.get(entry, "") for entry in ("label", "score", "error"))])
