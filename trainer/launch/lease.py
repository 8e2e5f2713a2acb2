"""The lease of a training folder in a bucket: one run at a time writes it.

A bucket has no lock. Holders are create-only documents, NUMBER.json, in leases/FINGERPRINT/ beside the stage's
outputs: of two that want the same number one wins. The newest number holds; while it works it renews NUMBER.alive.
Another run waits until that is silent, or says that it has ended, and takes the next number. A further attempt of the
same run takes it at once, as after a preemption; an earlier one that is still there is told as any other holder is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from contracts import storage
from contracts.errors import Preempted, ShardlineError, TryAgain

LEASES_FOLDER = "leases"
RENEW_S = 20.0
SILENCE_S = 120.0
"""Without a renewal for so long a holder is gone: six renewals in vain."""
_ENDED = b"ended"


@contextmanager
def held(
    folder: str,
    holder: str,
    *,
    say: Callable[[str], None],
    lost: Callable[[], None],
    renew_s: float = RENEW_S,
    silence_s: float = SILENCE_S,
) -> Iterator[None]:
    """Hold a lease while the body runs.

    Args:
        folder: URI of the lease's own folder.
        holder: Id of the run.
        say: Told in a line what is waited for.
        lost: Called, once, from a thread, when another run has taken the lease over, since this one was silent for too
            long, or a further attempt of this run has; `say` is told which.
        renew_s: Seconds between two renewals.
        silence_s: Seconds without one after which a holder is gone.

    Raises:
        TryAgain: Another run holds it, and is at work; or `lost` has stopped the body, which was no preemption: nobody
            comes to kill this process.
    """
    taken_over = threading.Event()

    def tell() -> None:
        taken_over.set()
        lost()

    number = _take(folder, holder, say=say, silence_s=silence_s, poll_s=min(renew_s, silence_s / 4))
    ended = threading.Event()
    thread = threading.Thread(
        target=_renew, args=(folder, number, ended, say, tell, renew_s), name="lease", daemon=True
    )
    thread.start()
    try:
        yield
    except Preempted as error:
        if taken_over.is_set():
            raise TryAgain("another attempt has taken this training folder over, and goes on") from error
        raise
    finally:
        ended.set()
        thread.join()
        # Unsaid, it is found out by the silence.
        with suppress(OSError, ShardlineError):
            storage.replace(_alive(folder, number), _ENDED)


def _take(folder: str, holder: str, *, say: Callable[[str], None], silence_s: float, poll_s: float) -> int:
    while True:
        number, other = _newest(folder)
        if number and other != holder:
            _wait_for_silence(folder, number, other, say=say, silence_s=silence_s, poll_s=poll_s)
        try:
            storage.publish(storage.join(folder, f"{number + 1:06d}.json"), json.dumps({"run": holder}).encode())
        except storage.AlreadyPublished:
            continue
        _beat(folder, number + 1)
        return number + 1


def _wait_for_silence(
    folder: str, number: int, other: str, *, say: Callable[[str], None], silence_s: float, poll_s: float
) -> None:
    """Return when a holder has ended, or has not renewed its lease for `silence_s`.

    Raises:
        TryAgain: It has renewed it meanwhile.
    """
    first = _read(_alive(folder, number))
    deadline = time.monotonic() + silence_s
    while first != _ENDED and time.monotonic() < deadline:
        if deadline - time.monotonic() > silence_s - poll_s:
            say(f"run {other} holds this training folder: waiting {silence_s:g} s for a sign of life")
        time.sleep(poll_s)
        if (now := _read(_alive(folder, number))) not in (first, _ENDED):
            raise TryAgain(
                f"run {other} trains the same in this line, and is at work: one run at a time writes its folder\n"
                f"  to do: wait for run {other} and run again, which then finds its weights; or cancel it first"
            )
        first = now


def _renew(
    folder: str,
    number: int,
    ended: threading.Event,
    say: Callable[[str], None],
    lost: Callable[[], None],
    renew_s: float,
) -> None:
    while not ended.wait(renew_s):
        try:
            newest, run = _newest(folder)
            if newest != number:
                say(f"an attempt of run {run} has taken this training folder over: this one ends")
                lost()
                return
            _beat(folder, number)
        except (OSError, ShardlineError):
            # A bucket that does not answer now may do so later; the newest number says who was silent for too long.
            continue


def _newest(folder: str) -> tuple[int, str]:
    """Return number and run of the holder; 0: there is none."""
    names = sorted(name for name in storage.list_names(folder) if name.endswith(".json"))
    if not names:
        return 0, ""
    return int(names[-1].partition(".")[0]), str(json.loads(_read(storage.join(folder, names[-1])))["run"])


def _beat(folder: str, number: int) -> None:
    storage.replace(_alive(folder, number), f"{time.time():.3f}".encode())


def _alive(folder: str, number: int) -> str:
    return storage.join(folder, f"{number:06d}.alive")


def _read(uri: str) -> bytes:
    try:
        return storage.read_bytes(uri)
    except FileNotFoundError:
        # Taken a moment ago, or by a process that was killed before its first renewal.
        return b""
