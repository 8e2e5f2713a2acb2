"""Classify texts with the ONNX model of this export.

    python predict.py TEXT... [--top K] [--format text|json|csv] [--url http://HOST:8000]
    python predict.py --lines FILE             one text a line; - is standard input
    python predict.py --json-lines FILE        one text a line, as JSON: "text", or {"text": "text"}
    python predict.py --manifest FILE.csv      texts in its column "text", or --column NAME

It needs Python 3.10 or newer, numpy, onnxruntime and tokenizers 0.20 or newer, and beside it
serving.py, reading.py and runtimes.py
(options, samples and answers: serving.py says more), text.json (how texts are cut and padded), tokenizer.json,
labels.json (names of the classes) and the model that text.json names. The answer is the likeliest class (softmax of the
model's outputs), with --top the K likeliest. Exit codes: 0; 2 for a bad argument, a folder that is not whole, or a text
that cannot be used: all others are answered.

Tokens are those that the model was evaluated with: the library `tokenizers` makes them of text, at most `max_length`
with the special ones, and a batch is padded to its longest text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from trainer.predict import runtimes, serving
else:
    # The shipped file: isolated (-I), Python does not look into its folder, and no file is to be written there.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    import reading

    # Before anything else imports them, which would find files of this folder first.
    reading.require_packages({"numpy": "numpy", "tokenizers": "tokenizers"})
    import runtimes
    import serving

import numpy as np
import numpy.typing as npt

TEXT_NAME = "text.json"
KIND = serving.Kind(noun="texts", argument="TEXT", allowed="texts as UTF-8", column="text")

Tokens = npt.NDArray[np.int64]

# A CPU gains nothing from more texts at a time, and padding takes time.
_BATCH = 16
# Characters of a text that are tokenised for each token that is kept: at first, and at most. Of a longer text the end
# is never looked at: ten million characters take half a minute.
_CHARACTERS, _MOST_CHARACTERS = 16, 1024


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
        # A text that says "[SEP]" has these five characters: special tokens are the tokenizer's to add, not a text's.
        self._tokenizer.encode_special_tokens = True
        self._dropped = _special_words(self._tokenizer)
        self._tokenizer.enable_truncation(max_length)

    def encode(self, text: str) -> list[int]:
        """Return the identifiers of a text's tokens; a text without any is one of padding."""
        most = min(len(text), _MOST_CHARACTERS * self._max_length)
        looked_at = _CHARACTERS * self._max_length
        while looked_at < most:
            found = self._tokenizer.encode(text[:looked_at])
            # Where a text is cut, its last word is another: as much again must lie behind what is kept.
            if len(found.ids) == self._max_length and 2 * max(end for _, end in found.offsets) <= looked_at:
                return self._ids(found)
            looked_at *= 4
        # Without offsets it takes three quarters of the time.
        return self._ids(self._tokenizer.encode_batch_fast([text[:most]])[0])

    def words(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of identifiers as text, as the tokenizer writes them."""
        return [self._tokenizer.id_to_token(one) or f"[{one}]" for one in ids]

    def _ids(self, found: Any) -> list[int]:
        ids: list[int] = found.ids
        if self._dropped:
            added = found.special_tokens_mask
            ids = [one for one, is_added in zip(ids, added, strict=True) if is_added or one not in self._dropped]
        # A network that looks at nothing answers with what is no number.
        return ids or [self._padding]


def _special_words(tokenizer: Any) -> set[int]:
    """Return the special tokens that a tokenizer makes of their names in a text: words of its model, as of Unigram's.

    The one that stands for what is unknown is none of them: any odd character has it.
    """
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_token")
    if unknown is None and model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    added = tokenizer.get_added_tokens_decoder()
    special = {number: token.content for number, token in added.items() if token.special and token.content != unknown}
    made = {one for name in special.values() for one in tokenizer.encode(name, add_special_tokens=False).ids}
    return made & special.keys()


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
    """Path of the ONNX model, below this file's folder."""
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
        allowed = "format_version 1; names; whole numbers from 1, padding from 0"
        return cls(**runtimes.read_entries(path, _RULES, [], allowed))


@dataclass(frozen=True)
class Classifier:
    """Tokenizer and labels of a model (serving.Model)."""

    preparation: Preparation
    encoder: Encoder
    labels: list[str]

    @property
    def graph(self) -> runtimes.Graph:
        """What text.json says of the graph."""
        said = self.preparation
        inputs = dict.fromkeys((said.tokens, said.mask), ("int64", (None, None)))
        return runtimes.Graph(said.model, inputs, [said.output])

    @property
    def batch(self) -> int:
        """Texts at a time."""
        return min(_BATCH, self.preparation.max_batch)

    def expand(self, argument: str) -> Iterator[serving.Asked]:
        """Yield the text itself.

        Raises:
            BadInput: It names a file, whose name nobody asks about.
        """
        if what := _describe_place(argument):
            raise runtimes.BadInput(
                f"{argument} is {what}, and not a text",
                allowed='texts as arguments, "like this"; of a file by an option',
                todo=f"give --lines {argument} for one text a line, or --manifest {argument} for a column of a table "
                "(CSV or JSON lines); what is a text all the same comes by --lines=-, standard input",
            )
        yield serving.Asked(serving.shorten(argument), argument)

    def prepare(self, asked: serving.Asked) -> list[int]:
        """Return the tokens of a text."""
        try:
            return self.encoder.encode(asked.value)
        except (UnicodeEncodeError, TypeError):
            raise serving.BadSample("it has characters that are none of Unicode") from None

    def answer(self, samples: Sequence[Sequence[int]], run: runtimes.Runner, top: int | None) -> list[dict[str, Any]]:
        """Return the labels of texts, at most `max_batch`.

        Raises:
            BadFolder: There are more or fewer logits than labels.
        """
        said = self.preparation
        tokens, mask = pad(samples, padding=said.padding, least=said.least, multiple=said.multiple)
        logits = run({said.tokens: tokens, said.mask: mask})[said.output]
        return [self._predict(row, top or 1) for row in runtimes.check_logits(logits, len(samples), self.labels)]

    def _predict(self, logits: npt.NDArray[Any], top: int) -> dict[str, Any]:
        if not np.isfinite(logits).all():
            return {"error": "the model's outputs for it are not finite numbers"}
        return runtimes.likeliest_of(logits, self.labels, top)

    def notes(self) -> list[str]:
        """Return nothing."""
        return []


def _describe_place(argument: str) -> str:
    """Return what an argument names that is no text: a file or folder that is there, a URI; empty: it is a text."""
    if argument.startswith("gs://") and not any(map(str.isspace, argument)):
        return "the URI of a file"
    try:
        path = Path(argument)
        # A word may be called like a folder.
        return "a file" if path.is_file() else "a folder" if "/" in argument and path.is_dir() else ""
    except (OSError, ValueError):  # longer than a name may be; with a zero byte
        return ""


def open_files(take: serving.Take) -> Classifier:
    """Open text.json, the tokenizer and the labels.

    Raises:
        BadFolder: A file is missing or cannot be used.
    """
    said = Preparation.read(take(TEXT_NAME))
    return Classifier(said, open_encoder(take(said.tokenizer), said), runtimes.read_labels(take(said.labels)))


def open_encoder(path: Path, said: Preparation) -> Encoder:
    """Open the tokenizer.

    Raises:
        BadFolder: The file is missing, or is none.
    """
    try:
        return Encoder(path.read_bytes(), max_length=said.max_length, padding=said.padding)
    except OSError as error:
        raise runtimes.BadFolder(f"{path} cannot be read: {error.strerror}", allowed="it beside predict.py") from None
    except ValueError as error:
        raise runtimes.BadFolder(f"{path}: {error}", allowed="the tokenizer that the export wrote") from None


_RULES: dict[str, Callable[[Any], bool]] = {
    "format_version": lambda value: value == 1,
    "model": runtimes.is_path_below,
    **dict.fromkeys(("labels", "tokenizer"), runtimes.is_file_name),
    **dict.fromkeys(("tokens", "mask", "output"), runtimes.is_text),
    **dict.fromkeys(("max_batch", "max_length", "least", "multiple"), runtimes.is_size),
    "padding": lambda value: type(value) is int and value >= 0,
}


if __name__ == "__main__":
    sys.exit(serving.run_program(KIND, open_files, __file__, "Classify texts."))
