"""Classify texts with the ONNX model that lies beside this file.

    python predict.py TEXT... [--top K] [--threads N] [--model FILE]
    python predict.py --lines FILE             one text a line; - is standard input
    python predict.py --json-lines FILE        one text a line, as JSON: "text", or {"text": "text"}; - is standard
                                               input, an empty line asks for answers now

It needs Python 3.10 or newer, numpy, onnxruntime and tokenizers, and four files in its own folder: text.json (how texts
are cut and padded), tokenizer.json, labels.json (names of the classes) and the model that text.json names. It prints a
line of JSON for each text, in their order: `label` and `score` of the likeliest class (softmax of the model's outputs),
with --top 2 or more `predictions` besides, or `error`. Exit codes: 0; 2 for a bad argument, a folder that is not whole,
or a text that cannot be used: all others are answered first.

Tokens are those that the model was evaluated with: the library `tokenizers` makes them of text, at most `max_length`
with the special ones, and a batch is padded to its longest text. ONNX Runtime runs on the CPU without graph
optimisation, as in the model's proof: its fusions were seen to change what a sound quantised model computes. Batches
are cut to `max_batch` of text.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TEXT_NAME = "text.json"
EXIT_BAD_INPUT = 2

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Texts = Iterator[str | Exception | None]
"""Texts; None asks for the answers to those before it, an exception is answered by its words."""
Runner = Callable[[Tokens, Tokens], Logits]
"""Maps tokens and their mask [B, L] int64 to logits [B, classes] float32."""

# A CPU gains nothing from more texts at a time, and padding takes time.
_BATCH = 16
# Characters of a text that are tokenised for each token that is kept: at first, and at most. Of a longer text the end
# is never looked at: ten million characters take half a minute.
_CHARACTERS, _MOST_CHARACTERS = 16, 1024


class BadFolder(Exception):
    """The files beside this one cannot be used; the message says what was found, what is allowed and what to do."""

    def __init__(self, found: str, *, allowed: str, todo: str = "export again, or copy the whole folder again") -> None:
        super().__init__(f"{found}\n  allowed: {allowed}\n  to do: {todo}")


class Encoder:
    """A tokenizer that cuts texts to a number of tokens.

    Args:
        content: Of tokenizer.json.
        max_length: Most tokens of a text, the special ones among them.
        padding: Identifier of the token that stands for a text without any.

    Raises:
        ValueError: It is no tokenizer, or adds more special tokens than that.
    """

    def __init__(self, content: bytes, *, max_length: int, padding: int) -> None:
        # Its threads would be lost in a fork, whose first text would then wait for them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        self._max_length, self._padding = max_length, padding
        try:
            self._tokenizer = Tokenizer.from_str(content.decode())
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise ValueError(f"it is no tokenizer: {error}") from None
        added = self._tokenizer.num_special_tokens_to_add(False)
        if added >= max_length:
            raise ValueError(f"it adds {added} special tokens to a text, and {max_length} tokens are allowed in all")
        # What the file says of both is another program's.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)

    def encode(self, text: str) -> list[int]:
        """Return the identifiers of a text's tokens; a text without any is one of padding."""
        most = min(len(text), _MOST_CHARACTERS * self._max_length)
        looked_at = _CHARACTERS * self._max_length
        while looked_at < most:
            found = self._tokenizer.encode(text[:looked_at])
            kept: list[int] = found.ids
            # Where a text is cut, its last word is another: as much again must lie behind what is kept.
            if len(kept) == self._max_length and 2 * max(end for _, end in found.offsets) <= looked_at:
                return kept
            looked_at *= 4
        # A network that looks at nothing answers with what is no number.
        return self._tokenizer.encode(text[:most]).ids or [self._padding]


def pad(texts: Sequence[Sequence[int]], *, padding: int, least: int, multiple: int) -> tuple[Tokens, Tokens]:
    """Return texts as one array, and which of it is text.

    Args:
        texts: Identifiers of tokens, of each text at least one.
        padding: Identifier that fills up.
        least: Least length.
        multiple: Lengths are multiples of it.

    Returns:
        Tokens and mask (1: text), [B, L] int64. L is the longest text's length, rounded up.
    """
    length = max(least, *(-(-len(text) // multiple) * multiple for text in texts))
    tokens = np.full((len(texts), length), padding, np.int64)
    mask = np.zeros_like(tokens)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return tokens, mask


@dataclass(frozen=True)
class Preparation:
    """What text.json says; every entry is obeyed, and one that is not known is refused."""

    format_version: int
    model: str
    """File name of the ONNX model."""
    labels: str
    """File name of the list of class names, in the order of the logits."""
    tokenizer: str
    """File name of the tokenizer."""
    tokens: str
    """Name of the model's input of tokens."""
    mask: str
    """Name of the model's input that says what is text."""
    output: str
    """Name of the model's output."""
    max_batch: int
    """Most texts at a time."""
    max_length: int
    """Most tokens of a text, with the special ones."""
    padding: int
    """Identifier of the token that fills up."""
    least: int
    """Least length of a batch."""
    multiple: int
    """Lengths of batches are multiples of it."""

    @classmethod
    def read(cls, path: Path) -> Preparation:
        """Read text.json.

        Raises:
            BadFolder: It is missing, is no JSON, lacks an entry, or has one that is not known or not allowed.
        """
        values = _read_json(path)
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or set(values) != set(names):
            found = set(values) if isinstance(values, dict) else set()
            missing, unknown = sorted(set(names) - found), sorted(found - set(names))
            raise BadFolder(f"{path}: missing: {missing}; not known: {unknown}", allowed=", ".join(names))
        if wrong := [f"{name} {json.dumps(values[name])}" for name, rule in _RULES.items() if not rule(values[name])]:
            raise BadFolder(
                f"{path}: {', '.join(wrong)}", allowed="format_version 1; names; whole numbers from 1, padding from 0"
            )
        return cls(**values)


@dataclass(frozen=True)
class Answer:
    """What is said of one text."""

    predictions: list[tuple[str, float]]
    """Labels with their probabilities, the likeliest first."""
    error: str = ""
    """Why there is none."""

    def to_json(self) -> str:
        """Return one line of JSON."""
        if self.error:
            return json.dumps({"error": self.error})
        found = [{"label": label, "score": score} for label, score in self.predictions]
        return json.dumps({**found[0], **({"predictions": found} if len(found) > 1 else {})})


@dataclass(frozen=True)
class Classifier:
    """A model with its tokenizer and labels."""

    preparation: Preparation
    encoder: Encoder
    labels: list[str]
    runner: Runner

    def classify(self, texts: Texts, *, top: int) -> Iterator[Answer]:
        """Yield an answer for each text, in order; a batch of texts at a time is in memory.

        Args:
            texts: The texts.
            top: Most labels a text.

        Raises:
            BadFolder: There are more or fewer logits than labels.
        """
        waiting: list[list[int] | Exception] = []
        for text in texts:
            if text is not None:
                waiting.append(self._encode(text))
            if text is None or len(waiting) == min(_BATCH, self.preparation.max_batch):
                yield from self._answer(waiting, top)
                waiting = []
        yield from self._answer(waiting, top)

    def _encode(self, text: str | Exception) -> list[int] | Exception:
        try:
            return self.encoder.encode(text) if isinstance(text, str) else text
        except (UnicodeEncodeError, TypeError):
            return ValueError("it has characters that are none of Unicode")

    def run(self, texts: Sequence[Sequence[int]]) -> Logits:
        """Map tokens of at most `max_batch` texts to logits [B, classes].

        Raises:
            BadFolder: There are more or fewer logits than labels.
        """
        said = self.preparation
        logits = self.runner(*pad(texts, padding=said.padding, least=said.least, multiple=said.multiple))
        if logits.shape != (len(texts), len(self.labels)):
            raise BadFolder(
                f"the model gave {list(logits.shape)} for {len(texts)} texts, there are {len(self.labels)} labels",
                allowed="a logit for each label",
            )
        return logits

    def _answer(self, waiting: list[list[int] | Exception], top: int) -> Iterator[Answer]:
        texts = [tokens for tokens in waiting if not isinstance(tokens, Exception)]
        rows: Iterator[Logits] = iter(self.run(texts) if texts else ())
        for tokens in waiting:
            if isinstance(tokens, Exception):
                yield Answer([], str(tokens))
                continue
            logits = next(rows)
            if not np.isfinite(logits).all():
                yield Answer([], "the model's outputs for it are not finite numbers")
                continue
            scores = softmax(logits)
            # By the logits: in float64 two scores of one rounding would be a tie. Of equal ones the first counts.
            places = np.argsort(-logits, kind="stable")[:top]
            yield Answer([(self.labels[place], float(scores[place])) for place in places])


def open_folder(folder: Path, *, model: str | None = None, threads: int = 1) -> Classifier:
    """Open what lies in a folder: text.json, the tokenizer, the labels and the model.

    Args:
        folder: Of this file's neighbours.
        model: File name of another model than text.json names.
        threads: Intra-op threads of ONNX Runtime.

    Raises:
        BadFolder: A file is missing or cannot be used, or they contradict each other.
    """
    said = Preparation.read(folder / TEXT_NAME)
    labels, encoder = read_labels(folder / said.labels), open_encoder(folder / said.tokenizer, said)
    if not (folder / said.model).is_file():
        raise BadFolder(f"{folder / said.model} is not there", allowed=f"the model that {TEXT_NAME} names")
    return Classifier(said, encoder, labels, open_model(folder / (model or said.model), said, threads))


def read_labels(path: Path) -> list[str]:
    """Read the names of the classes.

    Raises:
        BadFolder: The file is missing, or is no list of names.
    """
    labels = _read_json(path)
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise BadFolder(f"{path} is no list of names", allowed="a JSON list of texts")
    return labels


def open_encoder(path: Path, said: Preparation) -> Encoder:
    """Open the tokenizer.

    Raises:
        BadFolder: The file is missing, or is none.
    """
    try:
        return Encoder(path.read_bytes(), max_length=said.max_length, padding=said.padding)
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror}", allowed="it beside predict.py") from None
    except ValueError as error:
        raise BadFolder(f"{path}: {error}", allowed="the tokenizer that the export wrote") from None


def open_model(path: Path, said: Preparation, threads: int) -> Runner:
    """Return a function that runs an ONNX file on the CPU, with graph optimisation off (see the top of this file).

    Raises:
        BadFolder: The file is missing, is no model, or does not take what text.json describes.
    """
    if not path.is_file():
        raise BadFolder(f"{path} is not there", allowed=f"the model that {TEXT_NAME} names")
    # Else it reports its use to its maker while it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: they are raised as well
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - its exceptions have no class in common
        raise BadFolder(f"{path} does not load: {error}", allowed="a whole ONNX model") from None
    inputs = {item.name: item.type for item in session.get_inputs()}
    outputs = [item.name for item in session.get_outputs()]
    if inputs != dict.fromkeys((said.tokens, said.mask), "tensor(int64)") or said.output not in outputs:
        raise BadFolder(
            f"{path.name} takes {inputs} and gives {outputs}, {TEXT_NAME} says {said.tokens}, {said.mask} (int64) and "
            f"{said.output}",
            allowed=f"a model and a {TEXT_NAME} of one export",
        )

    def run(tokens: Tokens, mask: Tokens) -> Logits:
        logits: Logits = session.run([said.output], {said.tokens: tokens, said.mask: mask})[0]
        return logits

    return run


def softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Map logits [..., classes] to probabilities."""
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def read_texts(texts: Iterable[str], *, lines: str | None = None, json_lines: str | None = None) -> Texts:
    """Yield texts in the order of the arguments; None where answers are asked for, an exception for what is no text.

    Args:
        texts: Texts themselves.
        lines: A file with one text a line.
        json_lines: A file with one text a line, as JSON.

    Raises:
        BadFolder: A file cannot be read.
    """
    yield from texts
    for path, parse in ((lines, _parse_line), (json_lines, _parse_json)):
        if path is None:
            continue
        try:
            # Not by line ends of other systems alone: a text may hold them.
            with open(0 if path == "-" else path, "rb") as stream:
                yield from map(parse, stream)
        except OSError as error:
            raise BadFolder(
                f"{path} cannot be read: {error.strerror}",
                allowed="a file with one text a line, or -",
                todo="correct it",
            ) from None


def _parse_line(line: bytes) -> str | Exception:
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return ValueError("the line is no UTF-8")


def _parse_json(line: bytes) -> str | Exception | None:
    if not line.strip():
        return None
    try:
        value = json.loads(line)
        text = value["text"] if isinstance(value, dict) else value
    except (ValueError, KeyError):
        text = None
    return text if isinstance(text, str) else ValueError('the line is no JSON of a text, or of {"text": "..."}')


def main(arguments: list[str] | None = None) -> int:
    """Run the command line (see the top of this file); return the exit code."""
    options = _parse(arguments)
    failed = False
    try:
        # Not the link's folder, where this file is reached by one.
        classifier = open_folder(Path(__file__).resolve().parent, model=options.model, threads=options.threads)
        texts = read_texts(options.texts, lines=options.lines, json_lines=options.json_lines)
        for number, answer in enumerate(classifier.classify(texts, top=options.top), start=1):
            print(answer.to_json(), flush=True)
            if answer.error:
                failed = True
                print(f"error: text {number}: {answer.error}", file=sys.stderr)
    except BadFolder as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return EXIT_BAD_INPUT if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Classify texts.", allow_abbrev=False)
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--lines", metavar="FILE", help="a file with one text a line; - is standard input")
    parser.add_argument("--json-lines", metavar="FILE", help="a file with one text a line, as JSON")
    parser.add_argument("--top", type=int, default=1, metavar="K", help="most labels a text [1]")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime [1]")
    parser.add_argument("--model", metavar="FILE", help="another model of the same folder")
    options = parser.parse_args(arguments)
    for name in ("top", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: allowed are whole numbers from 1")
    if not options.texts and options.lines is None and options.json_lines is None:
        parser.error("no text was given: give texts, or a file of them with --lines or --json-lines")
    return options


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror}", allowed="it beside predict.py") from None
    except ValueError as error:
        raise BadFolder(f"{path} is no JSON: {error}", allowed="the file that the export wrote") from None


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and Path(value).name == value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


_RULES: dict[str, Callable[[Any], bool]] = {
    "format_version": lambda value: value == 1,
    **dict.fromkeys(("model", "labels", "tokenizer"), _is_file_name),
    **dict.fromkeys(("tokens", "mask", "output"), _is_text),
    **dict.fromkeys(("max_batch", "max_length", "least", "multiple"), _is_size),
    "padding": lambda value: type(value) is int and value >= 0,
}


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:
        # Whoever reads the answers has seen enough: nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BAD_INPUT
    sys.exit(code)
