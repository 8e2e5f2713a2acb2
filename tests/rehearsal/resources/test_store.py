"""The store of resources: readers never hold its lock while they copy, and a change is whole or none."""

import threading
from typing import Any, Self

import pytest

from rehearsal.resources.store import Store


class Message:
    """A message that asks, whenever it is copied, whether another thread could use the store."""

    def __init__(self, store: Store, value: int) -> None:
        self.store, self.value, self.watched = store, value, False
        self.free: list[bool] = []

    def __deepcopy__(self, _memo: object) -> Self:
        if self.watched:
            other = threading.Thread(target=self.store.new_id, daemon=True)
            other.start()
            other.join(5)
            self.free.append(not other.is_alive())
        return self


def test_readers_copy_without_the_lock() -> None:
    store = Store()
    message = Message(store, 1)
    store.add("a/1", message)
    message.watched = True
    readers: list[Any] = [
        lambda: store.get("a/1"),
        lambda: store.find("a/1"),
        lambda: list(store.list("a/")),
        lambda: store.wait("a/1", lambda _message: True, 0),
    ]
    for read in readers:
        read()
    assert message.free == [True] * len(readers)


def test_a_change_that_fails_changes_nothing_and_what_was_read_stays_as_it_was() -> None:
    store = Store()
    given = {"state": "new"}
    store.add("a/1", given)
    given["state"] = "changed by whoever added it"
    before = store.get("a/1")

    def fail(message: dict[str, str]) -> None:
        message["state"] = "half"
        raise ValueError

    with pytest.raises(ValueError):
        store.update("a/1", fail)
    assert store.get("a/1") == {"state": "new"}
    assert store.update("a/1", lambda message: message.update(state="done")) == {"state": "done"}
    assert before == {"state": "new"} and store.find("a/2") is None
    with pytest.raises(KeyError):
        store.add("a/1", {})


def test_lists_are_of_one_type_and_the_newest_comes_first() -> None:
    store = Store()
    for number, value in enumerate([1, "two", 3]):
        store.add(f"a/{number}", value)
    store.add("b/0", 4)
    assert list(store.list("a/")) == [3, "two", 1] and list(store.list("a/", int)) == [3, 1]
