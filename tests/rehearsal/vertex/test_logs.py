"""The log book: what it keeps."""

from rehearsal.vertex.logs import LogBook


def test_the_oldest_entries_go() -> None:
    logs = LogBook(max_entries=2)
    for number in range(3):
        logs.write("ml_job", {}, f"line {number}")
    assert [entry["jsonPayload"]["message"] for entry in logs.entries()] == ["line 1", "line 2"]
