"""Classify image files or texts with the ONNX model of this export.

    python predict.py PATH... [--top K] [-o table|json|csv]     of images
    python predict.py TEXT... | --lines FILE                    of texts

PATH is an image file, or a folder: all images in and below it, but those that sharding ignores by name. With --lines
each line of a file is a text; - is standard input. A row has the path or text, labels and scores: the K likeliest
classes (1) with their probabilities. Where an image may have several classes (labels.json has thresholds), these are
all that reach their threshold; with --top the K highest. Unusable samples are named on stderr, and the exit code is
then 2. Pillow is not as strict as training with damaged files, and refuses some JPEGs that sharding repaired.

It needs Python 3.10, numpy, onnxruntime and Pillow (for images) or tokenizers (for texts), and beside it labels.json,
preprocess.json, the model that it names, and pixels.py (the rule for pixels that training has too) or tokenizer.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Maps inputs of the model to its outputs, by name."""
Row = Sequence[Any]

EXIT_UNUSABLE = 2
# Larger batches take more memory and are no faster on a CPU.
_BATCH = 16
_MOST_PADDED = 60
# Characters tokenised per token of the result; ten million characters take half a minute.
_CHARACTERS_PER_TOKEN = 64
# Names of files and folders that are no images, in lower case, besides hidden ones: those of sharding/names.py.
IGNORED_NAMES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir", "$recycle.bin"}
IGNORED_NAMES |= {"system volume information", "lost+found"}


# --- models -----------------------------------------------------------------------------------------------------------


class Model:
    """Preprocessing and labels of a model, without its graph.

    Args:
        folder: Of labels.json and preprocess.json.

    Attributes:
        settings: Content of preprocess.json.
        labels: Names of the classes, in the order of the outputs.
        thresholds: By label, where a sample may have several; None: it has one.
    """

    kind: str
    """Of samples: images or texts."""
    column: str
    """Name of a row's first column."""

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads((folder / "preprocess.json").read_bytes())
        labels = json.loads((folder / "labels.json").read_bytes())
        has_thresholds = isinstance(labels[0], dict)
        self.labels: list[str] = [entry["label"] for entry in labels] if has_thresholds else labels
        self.thresholds: list[float] | None = [entry["threshold"] for entry in labels] if has_thresholds else None

    @property
    def header(self) -> Row:
        """Names of the columns."""
        return self.column, "labels", "scores"

    def answer(self, outputs: Mapping[str, Array], top: int | None) -> list[Row | None]:
        """Return labels and scores of each sample of a batch, the highest first; None: outputs are not finite."""
        logits = outputs[self.settings["output"]].astype(np.float64)
        scores = softmax(logits) if self.thresholds is None else sigmoid(logits)
        rows: list[Row | None] = []
        for row, row_logits in zip(scores, logits, strict=True):
            if not np.isfinite(row_logits).all():
                rows.append(None)
                continue
            places = np.argsort(-row_logits, kind="stable").tolist()
            if self.thresholds is not None and top is None:
                places = [place for place in places if row[place] >= self.thresholds[place]]
            else:
                places = places[: top or 1]
            rows.append(([self.labels[place] for place in places], [float(row[place]) for place in places]))
        return rows


class ImageModel(Model):
    """A model of images."""

    kind, column = "images", "file"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if __package__:
            from records import pixels
        else:
            import pixels  # type: ignore[import-not-found, no-redef]
        self._pixels: Any = pixels

    def prepare(self, content: bytes) -> Array:
        """Map an image file to pixels [S, S, 3] uint8, changed as sharding does.

        Raises:
            ValueError: It is no image that can be used.
        """
        from PIL import ImageColor

        settings, pixels = self.settings, self._pixels
        changes = pixels.Changes(
            **dict.fromkeys(settings["convert"], True),
            shorter_side=settings["resize"],
            jpeg_quality=settings["jpeg_quality"],
        )
        background = None if settings["background"] is None else ImageColor.getrgb(settings["background"])[:3]
        try:
            image = pixels.load_as_sharded(content, changes, background, settings["max_pixels"])
        except pixels.UndecodableImage as error:
            raise ValueError(str(error)) from error
        square: Array = pixels.centre_square(image, settings["image_size"])
        return square

    def collate(self, samples: Sequence[Array]) -> dict[str, Array]:
        """Return the model's input for images [S, S, 3] uint8."""
        settings = self.settings
        return {settings["input"]: self._pixels.normalise(np.stack(samples), settings["mean"], settings["std"])}


class TextModel(Model):
    """A model of texts."""

    kind, column = "texts", "text"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        content = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self.tokenizer = open_tokenizer(
            content, self.settings["max_length"], self.settings["padding"], self.settings["multiple"]
        )

    def prepare(self, content: str) -> str:
        """Return a text unchanged: a batch is tokenised as a whole.

        Raises:
            ValueError: It is no UTF-8.
        """
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise ValueError("it is no UTF-8") from error
        return content

    def collate(self, samples: Sequence[str]) -> dict[str, Array]:
        """Return the model's inputs for texts."""
        tokens, mask = encode(self.tokenizer, samples)
        return {self.settings["tokens"]: tokens, self.settings["mask"]: mask}


def open_model(folder: Path) -> ImageModel | TextModel:
    """Return the model of a folder, without its graph."""
    return TextModel(folder) if (folder / "tokenizer.json").exists() else ImageModel(folder)


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


def softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Map logits [B, classes] to the probability of each class."""
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def sigmoid(logits: Array) -> npt.NDArray[np.float64]:
    """Map each logit to a probability, without overflow; training uses this function too."""
    powers: npt.NDArray[np.float64] = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, powers) / (1.0 + powers)


# --- samples and rows -------------------------------------------------------------------------------------------------


def predict(
    model: Any,
    run: Runner,
    names: Sequence[str],
    read: Callable[[str], Any],
    top: int | None,
    unusable: list[str],
) -> Iterator[Row]:
    """Yield one row per sample, batch by batch.

    Args:
        model: An ImageModel or TextModel, or another with their methods `prepare`, `collate` and `answer`.
        run: Runs its graph.
        names: Of the samples.
        read: Returns the argument of `prepare` for a name.
        top: Number of labels.
        unusable: Receives the names of unusable samples; stderr has the reasons.
    """

    def reject(name: str, reason: object) -> None:
        unusable.append(name)
        sys.stderr.write(f"error: {name}: {reason}\n")

    for start in range(0, len(names), _BATCH):
        usable, samples = [], []
        for name in names[start : start + _BATCH]:
            try:
                samples.append(model.prepare(read(name)))
                usable.append(name)
            except IsADirectoryError:
                reject(name, "the folder has no file that sharding takes")
            except (OSError, ValueError) as error:
                reject(name, getattr(error, "strerror", None) or error)
        answers = model.answer(run(model.collate(samples)), top) if samples else []
        for name, answer in zip(usable, answers, strict=True):
            if answer is None:
                reject(name, "the model's outputs for it are not finite")
            else:
                yield (name, *answer)


def write_rows(header: Sequence[str], rows: Iterable[Row], output: str) -> None:
    """Write rows to stdout: as one JSON document per line, as CSV, or as a padded table."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    if output == "json":
        for row in rows:
            sys.stdout.write(json.dumps(dict(zip(header, row, strict=True))) + "\n")
            sys.stdout.flush()
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([cell(value, ".9g") for value in row] for row in rows)
    else:
        table = [header, *([" ".join(cell(value, ".4f").split()) for value in row] for row in rows)]
        widths = [min(_MOST_PADDED, max(map(len, column))) for column in zip(*table, strict=True)]
        for row in table:
            line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True))
            sys.stdout.write(line.rstrip() + "\n")


def cell(value: Any, number: str) -> str:
    """Return a value of a row as text, entries of a list separated by `; `."""
    if isinstance(value, list):
        return "; ".join(cell(entry, number) for entry in value)
    return format(value, number) if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def list_folder(path: str) -> list[str] | None:
    """Return the files below a folder, relative to it; None: it is no folder."""
    folder = Path(path)
    if not folder.is_dir():
        return None
    return [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]


def find_images(paths: Sequence[str], list_folder: Callable[[str], list[str] | None] = list_folder) -> list[str]:
    """Return files, and the sorted images in folders; stderr has the number of files ignored by name."""
    files: list[str] = []
    left_out = 0
    for path in paths:
        names = list_folder(path)
        images = [name for name in names or () if not any(map(_is_ignored, name.split("/")))]
        left_out += len(names or ()) - len(images)
        # An empty folder is reported as an unreadable file.
        files += [f"{path.rstrip('/')}/{name}" for name in sorted(images)] or [path]
    if left_out:
        sys.stderr.write(f"{left_out} files were left out by their names, as sharding does\n")
    return files


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def find_file(texts: Sequence[str]) -> str | None:
    """Return the first text that is the path of a file, most likely a missing --lines."""
    for text in texts:
        with suppress(OSError, ValueError):  # longer than a name may be; with a zero byte
            if Path(text).is_file():
                return text
    return None


def read_texts(texts: Sequence[str], lines: str | None) -> list[str]:
    """Return texts, and the lines of the file `lines` (-: standard input), as UTF-8.

    Raises:
        ValueError: A text is the path of a file, or `lines` cannot be read.
    """
    if name := find_file(texts):
        raise ValueError(f"{name} is a file, not a text: pass --lines {name} for one text per line")
    if lines is None:
        return [*texts]
    try:
        content = sys.stdin.buffer.read() if lines == "-" else Path(lines).read_bytes()
    except OSError as error:
        raise ValueError(f"--lines {lines} cannot be read: {error.strerror}") from error
    rows = content.decode("utf-8-sig", "surrogateescape").split("\n")
    return [*texts, *(row.removesuffix("\r") for row in (rows if rows[-1] else rows[:-1]))]


# --- the command ------------------------------------------------------------------------------------------------------


def open_graph(path: Path, optimization: str, threads: int = 0) -> Runner:
    """Return a function that runs an ONNX file on the CPU; 0 threads: as many as ONNX Runtime takes."""
    # ONNX Runtime sends telemetry when it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, optimization)
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3  # errors: they are raised as well
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: allowed are whole numbers from 1")
    return int(text)


def make_parser(kind: str) -> argparse.ArgumentParser:
    """Return the parser of the arguments for `images` or `texts`."""
    parser = argparse.ArgumentParser(description=f"Classify {kind}.", allow_abbrev=False)
    if kind == "images":
        parser.add_argument("samples", nargs="+", metavar="PATH", help="image files, or folders of them")
    else:
        parser.add_argument("samples", nargs="*", metavar="TEXT", help="texts")
        parser.add_argument("--lines", metavar="FILE", help="a file with one text per line; - is stdin")
    parser.add_argument("--top", type=_positive, metavar="K", help="number of labels per sample")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table", help="[table]")
    parser.add_argument("--model", metavar="FILE", help="another ONNX file of this folder")
    return parser


def main() -> int:
    """Run the command (see the top of this file); return the exit code."""
    if hasattr(signal, "SIGPIPE"):
        # End silently when the reader closes the pipe (| head).
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Bytecode must not be written beside this file, in which python -I does not search.
    sys.dont_write_bytecode = True
    folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(folder))
    model = open_model(folder)
    parser = make_parser(model.kind)
    options = parser.parse_args()
    read: Callable[[str], Any] = str
    if model.kind == "texts":
        if not options.samples and options.lines is None:
            parser.error("no text: pass texts, or a file with --lines")
        try:
            names = read_texts(options.samples, options.lines)
        except ValueError as error:
            parser.error(str(error))
    else:
        names, read = find_images(options.samples), lambda name: Path(name).read_bytes()
    run = open_graph(folder / (options.model or model.settings["model"]), model.settings["optimization"])
    unusable: list[str] = []
    write_rows(model.header, predict(model, run, names, read, options.top, unusable), options.output)
    return EXIT_UNUSABLE if unusable else 0


if __name__ == "__main__":
    sys.exit(main())
