"""What a full disk is called."""

import errno
import tempfile

import pytest

from contracts.errors import StorageError
from sharding.limits import space_needed


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("OSError: [Errno 28] No space left on device")],
)
def test_a_full_disk_is_named(tmp_path, error):
    with (
        pytest.raises(StorageError, match=f"{tmp_path} cannot be written: No space"),
        space_needed(f"file://{tmp_path}"),
    ):
        raise error
    # An output in a bucket is made in a local folder first: that is what is full.
    with pytest.raises(StorageError) as caught, space_needed("gs://bucket/shards"):
        raise error
    assert caught.value.given.startswith(tempfile.gettempdir()) and "gs://bucket/shards" in caught.value.allowed


def test_another_error_is_left_alone():
    with pytest.raises(RuntimeError, match="something else"), space_needed("gs://bucket/shards"):
        raise RuntimeError("something else")
