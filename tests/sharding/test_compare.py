"""Comparison with the run before: what differs much is a warning, or ends the stage where the configuration says so."""

import json

import pytest

from contracts.artifacts import RunRecord, ShardManifest, StageRecord
from contracts.stage import run_stage
from sharding.compare import compare
from sharding.task import shard


@pytest.fixture
def run_line(tmp_path, source, capsys):
    """Run the stage for a run of a line, and leave the record of that run."""
    line = tmp_path / "line"

    def run(run_id, **section):
        config = {"sharding": {"source": str(source), "target_shard_bytes": 4096, **section}}
        arguments = ["--config-json", json.dumps(config), "--line", str(line), "--run", run_id]
        capsys.readouterr()
        code = run_stage("shard", shard, arguments)
        captured = capsys.readouterr()
        if code == 0:
            record = RunRecord(
                fingerprint="",
                id=run_id,
                state="succeeded",
                started_at="",
                config={},
                stages=[StageRecord(name="shard", state="done", uri=captured.out.strip())],
                wall_s=0,
                process_start_s=0,
                results={},
            )
            place = line / "runs" / run_id
            place.mkdir(parents=True, exist_ok=True)
            (place / "run.json").write_bytes(record.to_json())
        return code, captured

    return run


def test_new_and_vanished_classes_warn_or_fail(run_line, source, write_file, make_image):
    assert run_line("r1")[0] == 0
    for number in range(20):
        write_file(source, f"dog/{number}.png".encode(), make_image(900 + number, "png"))
    code, printed = run_line("r2", new_classes="fail")
    assert code == 2 and "new classes: dog (compared with run r1)" in printed.err
    assert "sharding.new_classes" in printed.err
    code, printed = run_line("r3")
    assert code == 0 and "warning: new classes: dog (compared with run r1)" in printed.err
    for path in (source / "dog").iterdir():
        path.unlink()
    (source / "dog").rmdir()
    code, printed = run_line("r4")
    assert code == 0 and "warning: vanished classes: dog (compared with run r3)" in printed.err


def manifest_of(counts, rejected=0):
    total = sum(counts.values())
    splits = {
        name: {"first": total if name != "train" else 0, "samples": 0, "source_bytes": 0, "samples_by_class": [0] * 2}
        for name in ("train", "validation", "test")
    }
    splits["train"] |= {"samples": total, "samples_by_class": list(counts.values())}
    columns = {name: [] for name in ("name", "bytes", "crc32c", "samples", "index_bytes", "index_crc32c")}
    return ShardManifest.model_validate(
        {
            "fingerprint": str(counts),
            "format": "webdataset",
            "seed": 0,
            "classes": list(counts),
            "splits": splits,
            "shards": {"num_shards": dict.fromkeys(splits, 0), **columns},
            "rejected": [{"path": str(number), "reason": "x"} for number in range(rejected)],
        }
    )


def test_shares_of_classes_and_of_rejected_files():
    before, now = manifest_of({"a": 500, "b": 500}), manifest_of({"a": 700, "b": 300}, rejected=50)
    found = compare(before, now, "r1")
    assert found.class_distance == pytest.approx(0.2) and found.rejected == pytest.approx(50 / 1050)
    assert [text.partition(" ")[0] for text in found.describe()] == ["shares", "4.8%"]
    assert list(compare(before, before, "r1").describe()) == []
    # Shares of few samples move by themselves.
    few = compare(manifest_of({"a": 5, "b": 5}), manifest_of({"a": 9, "b": 1}), "r1")
    assert list(few.describe()) == [] and few.class_distance == pytest.approx(0.4)
