"""Curves out of events files: TensorBoard's own reader is the judge of what is in them."""

import json
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

from contracts import storage
from inspection.run import curves, event_file, event_message
from inspection.run.curves import CurveReader, read_curves, thin
from inspection.run.view import Curves
from records.tfrecord import mask_crc
from rehearsal.gcs import BucketServer

NAME = "events.out.tfevents.1700000000.host.1.0"


def frame(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return b"".join(
        (
            length,
            struct.pack("<I", mask_crc(google_crc32c.value(length))),
            content,
            struct.pack("<I", mask_crc(google_crc32c.value(content))),
        )
    )


def scalar(tag: str, step: int, value: float, time: float | None = None) -> bytes:
    row = summary_pb2.Summary.Value(tag=tag, simple_value=value)
    event = event_pb2.Event(
        wall_time=1.7e9 + step if time is None else time, step=step, summary=summary_pb2.Summary(value=[row])
    )
    return frame(event.SerializeToString())


def start(step: int) -> bytes:
    log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return frame(event_pb2.Event(wall_time=1.7e9, step=step, session_log=log).SerializeToString())


def write(folder: Path, content: bytes, name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def read(folder: Path, points: int = 400) -> Curves:
    found = read_curves(storage.normalise(folder), points=points)
    json.dumps(found.model_dump(mode="json"), allow_nan=False)
    return found


def as_shown(found: Curves) -> dict[str, list[tuple[int, float, float]]]:
    return {curve.name: list(zip(curve.steps, curve.times, curve.values, strict=True)) for curve in found.curves}


def by_tensorboard(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    shown = {tag: [(row.step, row.wall_time, row.value) for row in accumulator.Scalars(tag)] for tag in tags}
    return {tag: rows for tag, rows in shown.items() if rows}


def test_a_training_of_several_attempts_is_read_as_tensorboard_reads_it(tmp_path: Path) -> None:
    for attempt, (first, last) in enumerate(((0, 70), (40, 90), (20, 50), (50, 130))):
        with SummaryWriter(str(tmp_path), purge_step=first + 1) as writer:
            for step in range(first + 1, last + 1):
                writer.add_scalar("train/loss", attempt + 1 / step, step)
                if step % 10 == 0:
                    writer.add_scalar("validation/accuracy", step / 1000, step)
                    writer.add_histogram("weights", np.array([1.0, 2.0, step]), step)
            writer.add_scalar(f"only/{attempt}", attempt, 0)
        # Attempts are processes, seconds apart. Of one process names end in a count: the 10th file is before the 9th.
        (written,) = tmp_path.glob("events.out.tfevents.*.*")
        written.rename(tmp_path / f"events.out.tfevents.{1_700_000_000 + attempt}")
    found = read(tmp_path)
    assert as_shown(found) == by_tensorboard(tmp_path)
    (loss,) = (curve for curve in found.curves if curve.name == "train/loss")
    assert loss.steps == list(range(1, 131))
    assert loss.rows == 130
    assert found.rows == 130 + 13 + 4
    assert found.missing == []


def test_an_attempt_that_starts_over_within_a_file_drops_what_is_beyond(tmp_path: Path) -> None:
    rows = [scalar("loss", step, step) for step in range(10)]
    version = frame(event_pb2.Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
    write(tmp_path, b"".join([version, *rows, start(4), *rows[4:7], scalar("late", 3, 1.0)]))
    write(tmp_path, version + start(6) + scalar("loss", 6, 60.0), NAME + "1")
    assert as_shown(read(tmp_path)) == by_tensorboard(tmp_path)
    assert as_shown(read(tmp_path))["loss"][-1] == (6, 1.7e9 + 6, 60.0)


def by_the_server_of_tensorboard(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return what its page of scalars shows: also those that are tensors, which the accumulator lists apart."""
    found = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
    found.AddRunsFromDirectory(str(folder))
    found.Reload()
    return {
        tag: [
            (row.step, row.wall_time, tensor_util.make_ndarray(row.tensor_proto).item())
            for row in found.Tensors(run, tag)
        ]
        for run, tags in found.PluginRunToTagToContent("scalars").items()
        for tag in tags
    }


def test_scalars_that_are_tensors_are_read_as_tensorboard_shows_them(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 300):
            writer.add_scalar("old", 1 / step, step)
            writer.add_scalar("new", 1 / step, step, new_style=True)
            # A double that a float32 holds: more than that is not kept of any row.
            writer.add_scalar("double", step / 4, step, new_style=True, double_precision=True)
            # TensorFlow's way: with a shape.
            writer.file_writer.add_summary(scalar_pb("shaped", 2.5 * step), step)
            writer.add_text("text", "word", step)
            writer.add_pr_curve("curve", np.array([0, 1]), np.array([0.2, 0.7]), step)
    found = read(tmp_path)
    assert as_shown(found) == by_the_server_of_tensorboard(tmp_path)
    assert [(curve.name, curve.rows) for curve in found.curves] == [
        (name, 299) for name in ("double", "new", "old", "shaped")
    ]
    assert found.missing == []


def tensor_row(tag: str, step: int, tensor: tensor_pb2.TensorProto, *, plugin: str = "") -> bytes:
    row = summary_pb2.Summary.Value(tag=tag, tensor=tensor)
    if plugin:
        row.metadata.plugin_data.plugin_name = plugin
    summary = summary_pb2.Summary(value=[row])
    return frame(event_pb2.Event(wall_time=1.7e9, step=step, summary=summary).SerializeToString())


def test_the_first_row_of_a_tag_says_what_the_others_are(tmp_path: Path) -> None:
    raw = tensor_pb2.TensorProto(dtype=1, tensor_content=struct.pack("<f", 3.5))
    rows = [tensor_row("a", 0, raw, plugin="scalars"), tensor_row("b", 0, raw, plugin="histograms")]
    rows += [tensor_row(tag, step, raw) for step in (1, 2) for tag in "abc"]
    write(tmp_path, b"".join(rows))
    found = read(tmp_path)
    assert as_shown(found) == {"a": [(step, 1.7e9, 3.5) for step in range(3)]}
    assert as_shown(found) == by_the_server_of_tensorboard(tmp_path)
    assert found.missing == []


def test_a_tensor_beside_a_number_is_in_each_message(tmp_path: Path) -> None:
    """Messages that are equal up to the last number are read by comparing bytes, where they hold that number alone."""
    raw = tensor_pb2.TensorProto(dtype=1, float_val=[3.5])
    both = [summary_pb2.Summary.Value(tag="a", tensor=raw), summary_pb2.Summary.Value(tag="b", simple_value=1.0)]
    message = event_pb2.Event(wall_time=1.7e9, step=1, summary=summary_pb2.Summary(value=both)).SerializeToString()
    write(tmp_path, tensor_row("a", 0, raw, plugin="scalars") + frame(message) * 3)
    assert {curve.name: curve.rows for curve in read(tmp_path).curves} == {"a": 4, "b": 3}


def test_scalars_of_other_kinds_are_said(tmp_path: Path) -> None:
    whole = tensor_pb2.TensorProto(dtype=9, int64_val=[7])
    two = tensor_pb2.TensorProto(dtype=1, float_val=[1.0, 2.0])
    empty = tensor_pb2.TensorProto(dtype=1)
    rows = [tensor_row("a", step, tensor, plugin="scalars") for step, tensor in enumerate((whole, two, empty))]
    write(tmp_path, good() + b"".join(rows))
    found = read(tmp_path)
    assert found.rows == 20
    assert found.missing == [f"{NAME}: 3 scalars are neither one float32 nor one float64, and left out"]


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
events = st.builds(
    lambda step, time, values, backwards: (
        event_pb2.Event(
            wall_time=time,
            step=step,
            summary=summary_pb2.Summary(
                value=[summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values]
            ),
        ),
        backwards,
    ),
    st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1)),
    st.floats(0, 2e9),
    st.lists(st.tuples(st.sampled_from(["a", "b/c", "d" * 200, "<b>"]), numbers), max_size=3),
    st.booleans(),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(events, max_size=12))
def test_every_form_of_a_message_means_the_same_rows(written: list[tuple[Any, bool]]) -> None:
    content = b""
    expected: dict[str, list[tuple[int, float, float]]] = {}
    for event, backwards in written:
        text = event.SerializeToString()
        if backwards:
            # Fields may come in any order.
            rest = event_pb2.Event(summary=event.summary).SerializeToString()
            text = rest + event_pb2.Event(wall_time=event.wall_time, step=event.step).SerializeToString()
        content += frame(text)
        for value in event.summary.value:
            expected.setdefault(value.tag, []).append((event.step, event.wall_time, value.simple_value))
    file = event_file.EventFile("one", event_message.Budget())
    assert file.read(lambda at, length: content[at : at + length], len(content), most_rows=1000)
    found = {tag: list(zip(rows.steps, rows.times, rows.values, strict=True)) for tag, rows in file.rows.items()}
    assert found == expected
    assert file.missing() == []


# --- thinning ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(4, 40))
def test_thinning_keeps_ends_and_extremes(values: list[float], points: int) -> None:
    places = thin(values, points)
    assert places == sorted(set(places)) == thin(values, points)
    assert len(places) <= points
    if len(values) <= points:
        assert places == list(range(len(values)))
        return
    drawn = [values[place] for place in places]
    assert places[0] == 0 and places[-1] == len(values) - 1
    assert min(drawn) == min(values) and max(drawn) == max(values)


@given(st.integers(50, 2000), st.integers(4, 40), st.data())
def test_a_peak_of_one_row_is_kept_wherever_it_is(length: int, points: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, length - 1))
    values = [0.0] * length
    values[place] = -1.0
    assert place in thin(values, points)


def test_fewer_points_than_a_curve_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        thin([1.0] * 10, 3)


def test_a_long_curve_is_thinned_and_says_how_long_it_was(tmp_path: Path) -> None:
    write(tmp_path, b"".join(scalar("loss", step, -1.0 if step == 777 else 1.0) for step in range(5000)))
    (curve,) = read(tmp_path, points=50).curves
    assert (curve.rows, len(curve.steps) <= 50) == (5000, True)
    assert 777 in curve.steps
    assert curve.times[curve.steps.index(777)] == 1.7e9 + 777


# --- files in any state -----------------------------------------------------------------------------------------------


def good(rows: int = 20) -> bytes:
    return b"".join(scalar("loss", step, step) for step in range(rows))


def test_no_folder_and_no_file_are_no_curves(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == Curves(curves=[], rows=0, missing=[])
    write(tmp_path, b"")
    write(tmp_path, good(), "other.txt")
    assert read(tmp_path) == Curves(curves=[], rows=0, missing=[])


def test_a_truncated_file_gives_what_is_whole(tmp_path: Path) -> None:
    write(tmp_path, good()[:-7])
    found = read(tmp_path)
    assert found.rows == 19
    (said,) = found.missing
    assert "ends within a record" in said and NAME in said


def test_a_damaged_record_is_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    content = bytearray(good())
    content[len(scalar("loss", 0, 0)) + 20] ^= 1
    write(tmp_path, bytes(content))
    found = read(tmp_path)
    assert found.curves[0].steps == [0, *range(2, 20)]
    assert found.missing == [f"{NAME}: 1 damaged records are left out"]


def test_nothing_is_read_behind_a_damaged_length_but_other_files_are(tmp_path: Path) -> None:
    content = bytearray(good())
    content[len(scalar("loss", 0, 0))] ^= 1
    write(tmp_path, bytes(content))
    write(tmp_path, scalar("other", 5, 1.0), NAME + "1")
    found = read(tmp_path)
    assert [curve.rows for curve in found.curves] == [1, 1]
    (said,) = found.missing
    assert "is damaged: the rest is not read" in said


def test_a_record_that_claims_more_than_there_is_waits(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 62)
    write(tmp_path, good() + length + struct.pack("<I", mask_crc(google_crc32c.value(length))) + b"x" * 100)
    found = read(tmp_path)
    assert found.rows == 20
    assert "ends within a record: its last 112 bytes" in found.missing[0]


@pytest.mark.parametrize("behind", [0, 1, 5_000_000])
def test_long_records_are_passed_over(tmp_path: Path, behind: int) -> None:
    content = good() + frame(b"x" * 3_000_000) + frame(b"\x7a\x00" * 300_000) * bool(behind) + good()
    write(tmp_path, content + frame(b"y" * behind) * bool(behind) + good(3))
    assert read(tmp_path).rows == 43


def test_messages_that_are_none_are_counted(tmp_path: Path) -> None:
    bad = [
        b"\xff" * 1_000_000,
        b"\x09" + b"\xff" * 100,
        b"\x09" + bytes(8) + b"\x10" + b"\x80" * 20,
        b"\x0b\x0c",
        b"\x0a\x7f",
    ]
    write(tmp_path, good() + b"".join(map(frame, bad)) + good(2))
    found = read(tmp_path)
    assert found.rows == 22
    assert found.missing == [f"{NAME}: {len(bad)} damaged records are left out"]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("logs")
    content = bytearray(good() + start(3) + scalar("x", 2**62, 1.0) + good(5))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] ^= data.draw(st.integers(1, 255))
    content[data.draw(st.integers(0, len(content))) :] = data.draw(st.binary(max_size=100))
    # With checksums that agree, so that what is inside is looked at.
    write(folder, bytes(content) + frame(data.draw(st.binary(max_size=60))))
    write(folder, frame(data.draw(st.binary(max_size=60))) + good(1), NAME + "1")
    read(folder)


def test_what_json_has_no_word_for_is_left_out_and_said(tmp_path: Path) -> None:
    rows = [scalar("loss", step, value) for step, value in enumerate((1.0, float("nan"), float("inf"), 4.0))]
    rows += [scalar("when", step, 1.0, time) for step, time in enumerate((float("nan"), 1e300, -5.0, 1.7e9))]
    rows += [scalar("never", 0, float("-inf"))]
    write(tmp_path, b"".join(rows))
    found = read(tmp_path)
    assert [(curve.name, curve.steps) for curve in found.curves] == [("loss", [0, 3]), ("never", []), ("when", [3])]
    assert [(curve.not_finite, curve.first_not_finite) for curve in found.curves] == [(2, 1), (1, 0), (0, None)]
    assert [said.partition(":")[0] for said in found.missing] == ["loss", "never", "when"]
    assert "2 rows" in found.missing[0]


def test_steps_in_any_order_are_drawn_from_left_to_right(tmp_path: Path) -> None:
    write(tmp_path, b"".join(scalar("loss", step, step, 1.7e9) for step in (5, -7, 3, -(2**63), 2**63 - 1)))
    (curve,) = read(tmp_path).curves
    assert curve.steps == [-(2**63), -7, 3, 5, 2**63 - 1]
    assert curve.values[1:4] == [-7.0, 3.0, 5.0]


def test_names_are_given_as_they_are_and_thousands_of_them_are_bounded(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\u202e../"
    rows = [scalar(hostile, 0, 1.0), scalar("x" * 5000, 0, 1.0)]
    rows += [scalar(f"tag{number}", step, 1.0) for number in range(3000) for step in range(2)]
    write(tmp_path, b"".join(rows))
    found = read(tmp_path)
    assert len(found.curves) == event_file.MOST_TAGS
    assert hostile in [curve.name for curve in found.curves]
    (said,) = found.missing
    assert said.startswith(f"{NAME}: {1 + 2 * 2801} rows of 2802 tags are left out")


def test_what_is_read_is_bounded_and_the_bound_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "BLOCK_BYTES", 500)
    monkeypatch.setattr(event_file, "LONGEST_RECORD", 100)
    monkeypatch.setattr(curves, "MOST_ROWS", 30)
    for number in range(4):
        write(tmp_path, good(), f"{NAME}{number}")
    reader = CurveReader(storage.normalise(tmp_path))
    assert reader.poll()
    found = reader.curves()
    assert 30 <= found.rows < 45
    assert "longer than what is read" in found.missing[0]
    assert not reader.poll(), "nothing is new"
    assert reader.curves() == found


def test_messages_made_to_be_slow_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "BLOCK_BYTES", 3 << 20)
    monkeypatch.setattr(curves, "Budget", lambda: event_message.Budget(fields=100_000))
    write(tmp_path, frame(b"\x78\x00" * 500_000) * 4 + good(3))
    found = read(tmp_path)
    assert found.rows == 0
    assert "longer than what is read" in found.missing[0]


# --- while training runs ----------------------------------------------------------------------------------------------


def test_a_file_that_grows_byte_by_byte_is_read_on(tmp_path: Path) -> None:
    content = good(6)
    path = write(tmp_path, b"")
    reader = CurveReader(storage.normalise(tmp_path))
    seen = []
    for length in range(1, len(content) + 1):
        path.write_bytes(content[:length])
        reader.poll()
        seen.append(reader.curves().rows)
    assert seen == sorted(seen)
    assert set(seen) == set(range(7))
    assert reader.curves() == read(tmp_path)
    assert not reader.poll()


def test_only_new_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, good(1000))
    reader = CurveReader(storage.normalise(tmp_path))
    assert reader.poll()
    read_bytes = []

    def counting(uri: str, start: int, length: int, generation: int | None = None) -> bytes:
        content = path.read_bytes()[start : start + length]
        read_bytes.append(len(content))
        return content

    monkeypatch.setattr(storage, "read_range", counting)
    assert not reader.poll()
    assert read_bytes == []
    path.write_bytes(good(1002))
    assert reader.poll()
    assert reader.curves().rows == 1002
    assert sum(read_bytes) < 400


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, good(10))
    reader = CurveReader(storage.normalise(tmp_path))
    reader.poll()
    path.write_bytes(b"".join(scalar("other", step, 1.0) for step in range(40)))
    assert reader.poll()
    assert [(curve.name, curve.rows) for curve in reader.curves().curves] == [("other", 40)]
    path.write_bytes(good(3))
    assert reader.poll()
    assert [(curve.name, curve.rows) for curve in reader.curves().curves] == [("loss", 3)]
    write(tmp_path, start(2) + scalar("loss", 2, 22.0), NAME + "1")
    assert reader.poll()
    assert reader.curves().curves[0].values == [0.0, 1.0, 22.0]
    (tmp_path / (NAME + "1")).unlink()
    assert reader.poll()
    assert reader.curves().curves[0].values == [0.0, 1.0, 2.0]


def test_files_in_a_bucket_are_read_on_too(bucket_server: BucketServer) -> None:
    folder = "gs://bucket-1/train/tensorboard"
    reader = CurveReader(folder)
    assert not reader.poll()
    storage.replace(f"{folder}/{NAME}", good(500))
    storage.replace(f"{folder}/{NAME}1", start(400) + scalar("loss", 400, 1.0))
    assert reader.poll()
    assert reader.curves(1000).curves[0].steps == [*range(401)]
    storage.replace(f"{folder}/{NAME}1", start(400) + scalar("loss", 400, 1.0) + scalar("loss", 401, 1.0))
    assert reader.poll()
    assert reader.curves(1000).curves[0].steps == [*range(402)]
    assert reader.curves() == read_curves(folder)
    storage.delete(f"{folder}/{NAME}1")
    assert reader.poll()
    assert reader.curves().rows == 500


def test_a_bucket_that_is_not_there_is_said(bucket_server: BucketServer) -> None:
    found = read_curves("gs://bucket-9/train/tensorboard")
    assert found.curves == []
    assert "cannot be listed" in found.missing[0] and "bucket-9" in found.missing[0]
