"""Whether machines share their output: each shows it by a file of its own, which the first machine looks for.

The first rank writes checkpoints and the result, and all ranks and launchers read them: with a folder per machine a
training would come to its end, and fail there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from contracts import storage
from contracts.errors import ErrorDocument, StorageError, TryAgain
from trainer.launch.messages import Message

TOKEN_PREFIX = ".machine-"


@contextmanager
def shown_output(hello: Message) -> Iterator[Message]:
    """Give the hello with what this machine has written to its output, or with why it could not; deleted at the end.

    Nothing is written by the first machine, and nothing to a bucket. What a killed launcher has left is overwritten.
    """
    if hello.node_rank == 0 or not storage.is_local(hello.output):
        yield hello
        return
    token = uuid.uuid4().hex
    try:
        storage.replace(_place(hello.output, hello), token.encode())
        shown = hello.model_copy(update={"token": token})
    except StorageError as error:
        shown = hello.model_copy(update={"document": ErrorDocument.of(error)})
    except OSError as error:
        full = TryAgain(
            f"machine {hello.node_rank} cannot write to its output, {storage.display(hello.output)}: {error.strerror}; "
            "the same command continues when it can"
        )
        shown = hello.model_copy(update={"document": ErrorDocument.of(full)})
    try:
        yield shown
    finally:
        with suppress(OSError, StorageError):
            storage.delete(_place(hello.output, hello))


def is_shared(folder: str, hello: Message) -> bool:
    """Whether the machine that says hello is seen to write to this machine's training folder."""
    if not storage.is_local(folder) or not storage.is_local(hello.output):
        return hello.output == folder
    # A mounted folder may show it late, or not answer for a while.
    with suppress(OSError):
        return storage.read_bytes(_place(folder, hello)) == hello.token.encode()
    return False


def _place(folder: str, hello: Message) -> str:
    return storage.join(folder, f"{TOKEN_PREFIX}{hello.node_rank}")
