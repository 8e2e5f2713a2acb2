"""The store of resources: a change is whole or none."""

import pytest

from rehearsal.vertex.store import Store


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
