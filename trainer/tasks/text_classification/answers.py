"""Labels of texts by an export: `shardline predict` for text classification.

Tokens, labels and ONNX Runtime go through predict.py beside this file, of which the export holds a copy.
"""

from __future__ import annotations

import argparse
import sys

from contracts.errors import EXIT_OK, EXIT_USER_ERROR
from contracts.process import threads_per_rank
from trainer.export.checked_folder import CheckedFolder
from trainer.export.predict_task import describe_graph, open_engine
from trainer.tasks.text_classification import predict
from trainer.tasks.text_classification.predict import Answer, Classifier, Preparation, Runner

# Of a text: enough to tell one from another.
_SHOWN_CHARACTERS = 60


def print_labels(folder: CheckedFolder, options: argparse.Namespace) -> int:
    """Print the labels of texts; return the exit code: 2 where one could not be used.

    Args:
        folder: Of the export.
        options: Of the command (trainer/export/predict_task.py).

    Raises:
        DataError: The export is damaged.
    """
    try:
        said = Preparation.read(folder.take(predict.TEXT_NAME))
        ships = folder.document.graph().name
        if said.model != ships:
            raise folder.damaged(f"{predict.TEXT_NAME} is for {said.model}, and {ships} ships")
        labels = predict.read_labels(folder.take(said.labels))
        encoder = predict.open_encoder(folder.take(said.tokenizer), said)
        runner, ran = _open_runner(folder, said)
        print(f"predict: {ran}", file=sys.stderr, flush=True)
        return _print_answers(Classifier(said, encoder, labels, runner), options)
    except predict.BadFolder as error:
        raise folder.damaged(str(error).partition("\n")[0]) from None


def _open_runner(folder: CheckedFolder, said: Preparation) -> tuple[Runner, str]:
    """Return what answers, and its description."""
    engine, words = open_engine(folder)
    if engine is not None:
        return lambda tokens, mask: engine({said.tokens: tokens, said.mask: mask})[said.output], words
    path, threads = folder.take(said.model), threads_per_rank(1)
    return predict.open_model(path, said, threads), describe_graph(path, threads, words)


def _print_answers(classifier: Classifier, options: argparse.Namespace) -> int:
    failed = 0
    shown: list[str] = []

    def remembered() -> predict.Texts:
        for text in predict.read_texts(options.files, lines=options.lines):
            shown.append(" ".join(text[: 4 * _SHOWN_CHARACTERS].split()) if isinstance(text, str) else "")
            yield text

    for answer in classifier.classify(remembered(), top=options.top):
        text = shown.pop(0)
        if options.json:
            print(answer.to_json(), flush=True)
        elif not answer.error:
            print(_in_words(text, answer), flush=True)
        if answer.error:
            failed += 1
            print(f"error: {text[:_SHOWN_CHARACTERS]!r}: {answer.error}", file=sys.stderr, flush=True)
    return EXIT_USER_ERROR if failed else EXIT_OK


def _in_words(text: str, answer: Answer) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
    said = ", ".join(f"{label} {score:.4f}" for label, score in answer.predictions)
    return f"{short}: {said}".encode("utf-8", "backslashreplace").decode()
