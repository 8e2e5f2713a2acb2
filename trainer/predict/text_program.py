"""Classify texts with the ONNX model of this export.

    python predict.py TEXT... [--top K] [-o table|json|csv]
    python predict.py --lines FILE

With --lines each line of a file is a text; - is standard input. A row per text has the text, its K likeliest labels (1)
and their probabilities, the softmax of the model's outputs. Unusable texts are named on stderr, and the
exit code is then 2.

It needs Python 3.10, numpy, tokenizers 0.20 and onnxruntime, and beside it answers.py, tokenizer.json, text.json,
labels.json and the model that text.json names.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from trainer.predict import answers
    from trainer.predict.answers import Array, Row
else:
    # Shipped file: python -I does not search its folder, and bytecode must not be written there.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import answers

HEADER = ("text", "labels", "scores")
# Characters tokenised per token of the result; ten million characters take half a minute.
_CHARACTERS_PER_TOKEN = 64


@dataclass(frozen=True)
class TextSettings:
    """Content of text.json."""

    model: str
    """Path of the ONNX file below this folder."""
    optimization: str
    """ONNX Runtime's GraphOptimizationLevel."""
    tokens: str
    """Input of the identifiers of tokens."""
    mask: str
    """Input of the attention mask."""
    output: str
    max_length: int
    """Most tokens of a text, with those that the tokenizer adds."""
    padding: int
    """Identifier of the padding token."""
    multiple: int
    """Lengths of batches are multiples of it."""


@dataclass(frozen=True)
class TextModel:
    """Tokenizer and labels of a model; without its graph."""

    settings: TextSettings
    tokenizer: Any
    labels: list[str]

    @classmethod
    def open(cls, folder: Path) -> TextModel:
        """Read text.json, tokenizer.json and labels.json."""
        settings = TextSettings(**json.loads((folder / "text.json").read_bytes()))
        content = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = open_tokenizer(content, settings.max_length, settings.padding, settings.multiple)
        return cls(settings, tokenizer, json.loads((folder / "labels.json").read_bytes()))

    def prepare(self, text: str) -> str:
        """Return a text unchanged: a batch is tokenised as a whole.

        Raises:
            ValueError: It is no UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("it is no UTF-8") from error
        return text

    def collate(self, texts: Sequence[str]) -> dict[str, Array]:
        """Return the model's inputs for texts."""
        tokens, mask = encode(self.tokenizer, texts)
        return {self.settings.tokens: tokens, self.settings.mask: mask}

    def answer(self, outputs: Mapping[str, Array], top: int | None) -> list[Row | None]:
        """Return labels and scores of each text of a batch, the highest first; None: outputs are not finite."""
        logits = outputs[self.settings.output].astype(np.float64)
        scores = answers.softmax(logits)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : top or 1].tolist()
        return [
            ([self.labels[place] for place in places], [float(row[place]) for place in places])
            if np.isfinite(row).all()
            else None
            for places, row in zip(chosen, scores, strict=True)
        ]


def open_tokenizer(content: str, max_length: int, padding: int, multiple: int) -> Any:
    """Return a tokenizer that cuts and pads as in training."""
    # A forked process would wait for threads that a fork does not copy.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    # "[SEP]" in a text is five characters; only the tokenizer adds special tokens.
    tokenizer.encode_special_tokens = True
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(pad_id=padding, pad_to_multiple_of=multiple)
    return tokenizer


def encode(tokenizer: Any, texts: Sequence[str]) -> tuple[Array, Array]:
    """Return tokens and mask (1: text) of texts, [B, L] int64; L is the longest text's length, rounded up."""
    most = _CHARACTERS_PER_TOKEN * tokenizer.truncation["max_length"]
    # Without offsets it takes three quarters of the time.
    encodings = tokenizer.encode_batch_fast([text[:most] for text in texts])
    tokens = np.array([encoding.ids for encoding in encodings], np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
    if not tokens.size:
        padding = tokenizer.padding
        tokens = np.full((len(texts), padding["pad_to_multiple_of"]), padding["pad_id"], np.int64)
        mask = np.zeros_like(tokens)
    # A text without tokens has one padding token: attention over nothing gives NaN.
    mask[:, 0] = 1
    return tokens, mask


def main() -> int:
    """Run the command (see the top of this file); return the exit code."""
    parser = answers.make_parser("Classify texts.")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts")
    parser.add_argument("--lines", metavar="FILE", help="a file with one text per line; - is stdin")
    options = parser.parse_args()
    if not options.texts and options.lines is None:
        parser.error("no text: pass texts, or a file with --lines")
    if name := find_file(options.texts):
        parser.error(f"{name} is a file, not a text: pass --lines {name} for one text per line")
    try:
        texts = [*options.texts, *([] if options.lines is None else read_lines(options.lines))]
    except OSError as error:
        parser.error(f"--lines {options.lines}: {error.strerror}")
    folder = Path(__file__).resolve().parent
    model = TextModel.open(folder)
    run = answers.open_graph(folder / (options.model or model.settings.model), model.settings.optimization)
    unusable: list[str] = []
    rows = answers.predict(model, run, texts, str, options.top, unusable)
    answers.write_rows(HEADER, rows, options.output)
    return answers.EXIT_UNUSABLE if unusable else 0


def find_file(texts: Sequence[str]) -> str | None:
    """Return the first text that is the path of a file, most likely a missing --lines."""
    for text in texts:
        with suppress(OSError, ValueError):  # longer than a name may be; with a zero byte
            if Path(text).is_file():
                return text
    return None


def read_lines(name: str) -> list[str]:
    """Return the lines of a file, or of standard input (-), as UTF-8."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


if __name__ == "__main__":
    sys.exit(main())
