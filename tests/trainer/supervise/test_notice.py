"""The metadata server's notice, from the server of a rehearsal, which answers as Compute Engine's does."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.machines.metadata import Identity, MetadataServer
from trainer.supervise import notice
from trainer.supervise.notice import HOST_VARIABLE, NoticeWatch, metadata_host


@pytest.fixture
def machine() -> Iterator[MetadataServer]:
    refused: list[str] = []
    identity = Identity("acme", "1", "us-central1-a", "n1-standard-4", "runner@acme", str)
    server = MetadataServer("worker-0", identity, refused.append)
    yield server
    server.close()
    assert refused == []


def test_a_notice_is_heard_by_one_long_poll_and_a_server_that_fails_is_asked_again(
    machine: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, known_values, is_polling = NoticeWatch._poll, list[str | None](), threading.Event()

    def fail_once(self: NoticeWatch, known: str | None) -> tuple[str, str]:
        known_values.append(known)
        if len(known_values) == 1:
            raise OSError("no answer")
        if len(known_values) == 3:
            is_polling.set()
        return ask(self, known)

    monkeypatch.setattr(NoticeWatch, "_poll", fail_once)
    noticed, messages = threading.Event(), list[str]()
    host = machine.environment[HOST_VARIABLE]
    NoticeWatch(host, noticed.set, messages.append)
    assert is_polling.wait(60)
    assert not noticed.is_set()
    machine.preempt()
    assert noticed.wait(60)
    assert known_values[:2] == [None, None] and known_values[2] and len(known_values) == 3
    assert messages == []
    before = threading.Event()
    NoticeWatch(host, before.set, messages.append)
    assert before.wait(60), "a notice from before is heard"


def test_the_hosts_file_or_the_variable_names_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    monkeypatch.setattr(notice, "_PRODUCT_PATH", tmp_path / "none")
    monkeypatch.setattr(notice, "_HOSTS_PATH", tmp_path / "hosts")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n# 169.254.169.254 metadata.google.internal\n")
    assert metadata_host() is None
    (tmp_path / "hosts").write_text("169.254.169.254 metadata.google.internal  # Added by Google\n")
    assert metadata_host() == "metadata.google.internal"
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1:8080")
    assert metadata_host() == "127.0.0.1:8080"
