"""Curves out of scalars files; tests/trainer/report/test_scalars.py compares what training writes with TensorBoard."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import storage
from contracts.scalars import part_name, scalars_line, start_line
from inspection.run import curves, scalars
from inspection.run.curves import read_curves, thin
from inspection.run.view import Curves
from rehearsal.gcs import BucketServer

NAME = part_name(1, 0)


def scalar(name: str, step: int, value: float, time: float | None = None) -> bytes:
    return scalars_line(step, 1.7e9 + step if time is None else time, {name: value})


def write(folder: Path, content: bytes, name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def read(folder: Path, points: int = 400) -> Curves:
    found = read_curves(storage.normalise(folder), points=points)
    json.dumps(found.model_dump(mode="json"), allow_nan=False)
    return found


def good(rows: int = 20) -> bytes:
    return start_line(0, 1.7e9) + b"".join(scalar("loss", step, step) for step in range(rows))


def test_an_attempt_that_goes_on_drops_what_earlier_ones_wrote_beyond(tmp_path: Path) -> None:
    write(tmp_path, good(10))
    # The second attempt wrote two parts; the third went on from before both.
    write(tmp_path, start_line(6, 1.0) + scalar("loss", 7, 70.0), part_name(2, 0))
    write(tmp_path, scalar("loss", 8, 80.0), part_name(2, 1))
    assert read(tmp_path).curves[0].values == [0, 1, 2, 3, 4, 5, 6, 70, 80]
    write(tmp_path, start_line(4, 1.0), part_name(3, 0))
    assert read(tmp_path).curves[0].values == [0, 1, 2, 3, 4]
    assert read(tmp_path).missing == []


names = st.sampled_from(["a", "b/c", "<b>", "\u202e"])
numbers = st.floats(width=32)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.dictionaries(names, numbers, max_size=4)), max_size=12))
def test_every_line_means_its_values(lines: list[tuple[int, dict[str, float]]]) -> None:
    """Of whatever names, in whatever order; a float32 is kept to the bit."""
    content = b"".join(scalars_line(step, 5.0, values) for step, values in lines)
    file = scalars.ScalarFile("one")
    assert file.read(lambda at, length: content[at : at + length], len(content), most_values=1000)
    found = [
        (name, step, repr(value))
        for rows in file.rows
        for name, steps, _, values in rows.columns(None)
        for step, value in zip(steps, values, strict=True)
    ]
    expected = [(name, step, repr(float(f"{value:.9g}"))) for step, values in lines for name, value in values.items()]
    assert sorted(found) == sorted(expected)
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


def test_no_folder_and_no_file_are_no_curves(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == Curves(curves=[], rows=0, missing=[])
    write(tmp_path, b"")
    write(tmp_path, good(), "other.txt")
    assert read(tmp_path) == Curves(curves=[], rows=0, missing=[])


def test_a_line_that_is_not_whole_is_waited_for_and_a_damaged_one_left_out(tmp_path: Path) -> None:
    write(tmp_path, good()[:-7])
    found = read(tmp_path)
    assert (found.rows, found.missing) == (19, [])
    damaged = [b"{", b'["start"]', b'{"scalars":[1]}', b'{"step":1e9,"time":1,"scalars":{"loss":1}}', b"\xff", b""]
    damaged += [b'{"step":1,"time":1,"scalars":{"loss":%s}}' % value for value in (b"[]", b'"big"', b"1" * 500)]
    damaged += [b'{"step":%s,"time":1,"scalars":{"loss":1}}' % (b"9" * 30), b'{"start":"x"}', b"[" * 10_000]
    write(tmp_path, good() + b"\n".join(damaged) + b"\n" + scalar("loss", 30, 3.0))
    found = read(tmp_path)
    assert found.curves[0].steps == [*range(20), 30]
    assert found.missing == [f"{NAME}: {len(damaged)} damaged lines are left out"]


def test_a_line_without_an_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "BLOCK_BYTES", 500)
    write(tmp_path, good() + b"x" * 2000 + b"\n" + scalar("loss", 30, 3.0))
    found = read(tmp_path)
    assert found.curves[0].steps == [*range(20), 30]
    assert "damaged lines" in found.missing[0]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("logs")
    content = bytearray(good() + start_line(3, 1.0) + scalar("x", 2**62, math.nan) + good(5))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] ^= data.draw(st.integers(1, 255))
    content[data.draw(st.integers(0, len(content))) :] = data.draw(st.binary(max_size=100))
    write(folder, bytes(content))
    write(folder, data.draw(st.binary(max_size=60)) + b"\n" + good(1), part_name(2, 0))
    read(folder)


def test_what_json_has_no_word_for_is_left_out_and_said(tmp_path: Path) -> None:
    rows = [scalar("loss", step, value) for step, value in enumerate((1.0, math.nan, math.inf, 4.0))]
    rows += [scalar("when", step, 1.0, time) for step, time in enumerate((math.nan, 1e300, -5.0, 1.7e9))]
    rows += [scalar("never", 0, -math.inf)]
    write(tmp_path, b"".join(rows))
    assert b'"loss":"NaN"' in rows[1] and b'"loss":"Infinity"' in rows[2]
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
    rows += [scalar(f"name{number}", step, 1.0) for number in range(3000) for step in range(2)]
    write(tmp_path, b"".join(rows))
    found = read(tmp_path)
    assert len(found.curves) == scalars.MOST_NAMES
    assert hostile in [curve.name for curve in found.curves]
    (said,) = found.missing
    assert said.startswith(f"{NAME}: {1 + 2 * 2801} lines are left out")


def test_what_is_read_is_bounded_and_the_bound_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "BLOCK_BYTES", 300)
    monkeypatch.setattr(curves, "MOST_VALUES", 30)
    for number in range(4):
        write(tmp_path, good()[len(start_line(0, 1.7e9)) :], part_name(1, number))
    found = read(tmp_path)
    assert 30 <= found.rows < 45
    assert "more scalars than are read" in found.missing[0]


def test_files_in_a_bucket_are_joined(bucket_server: BucketServer) -> None:
    folder = "gs://bucket-1/train/scalars"
    storage.replace(f"{folder}/{NAME}", good(500))
    storage.replace(f"{folder}/{part_name(2, 0)}", start_line(399, 1.0) + scalar("loss", 400, 1.0))
    assert read_curves(folder, points=1000).curves[0].steps == [*range(401)]


def test_a_bucket_that_is_not_there_is_said(bucket_server: BucketServer) -> None:
    found = read_curves("gs://bucket-9/train/scalars")
    assert found.curves == []
    assert "cannot be listed" in found.missing[0] and "bucket-9" in found.missing[0]
