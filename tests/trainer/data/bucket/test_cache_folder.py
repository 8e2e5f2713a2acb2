"""Folders in memory: whoever joins while one is deleted keeps what is theirs. And how ranks share the bound."""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.bucket import cache_folder
from trainer.data.bucket.plan import ahead_bytes, evaluation_bytes


@pytest.fixture
def name(tmp_path: Path) -> Iterator[Path]:
    """A name that no other process looks for."""
    yield tmp_path / f"{cache_folder._PREFIX}{uuid.uuid4().hex}"


def test_who_joins_while_a_folder_is_deleted_keeps_its_own(
    name: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache_folder._keep(name)
    (name / "range").write_bytes(b"old")
    rmtree, joined = shutil.rmtree, []

    def join_and_delete(*arguments: Any, **options: Any) -> None:
        joined.append(cache_folder._keep(name))
        (name / "range").write_bytes(b"new")
        rmtree(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", join_and_delete)
        cache_folder._let_go([(name, first)], os.getpid())
    assert len(joined) == 1
    assert (name / "range").read_bytes() == b"new"
    # It is still known as used, so nobody takes it away; and at its end it goes.
    cache_folder._delete_abandoned(tmp_path)
    assert name.exists()
    cache_folder._let_go([(name, joined[0])], os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_what_was_being_deleted_when_its_process_was_killed_is_deleted_by_the_next(tmp_path: Path) -> None:
    half = tmp_path / f"{cache_folder._PREFIX}{uuid.uuid4().hex}{cache_folder._GONE}"
    half.mkdir()
    (half / "range").write_bytes(b"old")
    # Killed between making the folder and what says that it is used.
    (tmp_path / f"{cache_folder._PREFIX}begun").mkdir()
    (tmp_path / "of another").mkdir()
    cache_folder._delete_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["of another"]


@given(st.integers(1, 1 << 50), st.integers(1, 1 << 32), st.integers(1, 64))
def test_all_ranks_together_keep_to_the_bound(limit: int, range_bytes: int, ranks: int) -> None:
    ahead, evaluation = (share(limit, range_bytes, ranks) for share in (ahead_bytes, evaluation_bytes))
    assert ranks * (ahead + evaluation) <= limit
    # What a working set may take, and no less than two ranges to evaluate on where the bound has so many.
    assert ranks * ahead >= 0.9 * limit - 2 * ranks
    assert evaluation >= min(2 * range_bytes, int(0.1 * limit) // ranks)
