"""The log of calls: what it keeps."""

from rehearsal.doors.access_log import AccessLog


def test_the_oldest_entries_go() -> None:
    log = AccessLog(max_entries=2)
    for number in range(3):
        log.add("rest", "JobService.GetCustomJob", f"jobs/{number}", "OK", "")
    assert [entry.resource for entry in log.entries()] == ["jobs/1", "jobs/2"]
