"""The bytes of the digits' shards, in both formats.

After a wanted change of them, which counts `sharding.job.REVISION` up, `GOLDEN` is set to what the failure shows.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharding.reading import without_key

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"
# sha256 over name (without the job's key) and content of each shard file, in the order of the names.
GOLDEN = {
    "webdataset": "285d77123432983e4bd016208c1fe393f127f34eccd75c2902b9e0341d843308",
    "tfrecord": "581891229558bffef5018306300df24202613175a1500efb7595d108bdcd8982",
}


@pytest.mark.line
def test_the_digits_have_these_bytes(run_shard, tmp_path):
    subprocess.run([sys.executable, SCRIPT, tmp_path / "digits"], check=True)
    found = {}
    for shard_format in GOLDEN:
        result = run_shard(source=str(tmp_path / "digits"), format=shard_format, target_shard_bytes=65536)
        total = hashlib.sha256()
        for name in sorted(result.manifest.shards.name):
            total.update(without_key(name).encode() + b"\0" + (result.folder / name).read_bytes())
        found[shard_format] = total.hexdigest()
    assert found == GOLDEN
