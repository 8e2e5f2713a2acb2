"""The end of the local cloud; what runs in it is in test_weeks.py, test_rehearse.py and test_failures.py."""

from pathlib import Path

import pytest

from rehearsal.cloud import LocalCloud


def test_a_fault_of_a_thread_is_told_at_the_end_and_schedules_end_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = LocalCloud(tmp_path / "cloud", projects={"acme-vision": "123456789012"})
    fired: list[bool] = []
    for part in (cloud.custom_jobs, cloud.dataflow, cloud.pipelines):
        monkeypatch.setattr(part, "close", lambda: fired.append(cloud.vertex._schedule_runner._thread.is_alive()))
    with pytest.raises(RuntimeError, match="a fault of ours"), cloud:
        cloud.dataflow.failures.append("a fault of ours")
    assert fired == [False] * 3
