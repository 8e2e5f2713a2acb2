"""Curves out of scalars files."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import storage
from contracts.scalars import part_name, scalars_line, start_line
from inspection.training import read_curves, thin
from inspection.view import Curve
from rehearsal.gcs import BucketServer

NAME = part_name(1, 0)


def scalar(name: str, step: int, value: float, time: float | None = None) -> bytes:
    return scalars_line(step, 1.7e9 + step if time is None else time, {name: value})


def write(folder: Path, content: bytes, name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def read(folder: Path, points: int = 400) -> tuple[list[Curve], list[str]]:
    curves, problems = read_curves(storage.normalise(folder), points=points)
    json.dumps([curve.model_dump(mode="json") for curve in curves], allow_nan=False)
    return curves, problems


def good(rows: int = 20) -> bytes:
    return start_line(0, 1.7e9) + b"".join(scalar("loss", step, step) for step in range(rows))


def test_an_attempt_that_goes_on_drops_what_earlier_ones_wrote_beyond(tmp_path: Path) -> None:
    write(tmp_path, good(10))
    # The second attempt wrote two parts; the third went on from before both.
    write(tmp_path, start_line(6, 1.0) + scalar("loss", 7, 70.0), part_name(2, 0))
    write(tmp_path, scalar("loss", 8, 80.0), part_name(2, 1))
    assert read(tmp_path)[0][0].values == [0, 1, 2, 3, 4, 5, 6, 70, 80]
    write(tmp_path, start_line(4, 1.0), part_name(3, 0))
    assert read(tmp_path)[0][0].values == [0, 1, 2, 3, 4]
    assert read(tmp_path)[1] == []


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


# --- files in any state -----------------------------------------------------------------------------------------------


def test_a_line_that_is_not_whole_is_waited_for_and_a_damaged_one_left_out(tmp_path: Path) -> None:
    write(tmp_path, good()[:-7])
    ((curve,), problems) = read(tmp_path)
    assert (curve.rows, problems) == (19, [])
    damaged = [b"{", b'["start"]', b'{"scalars":[1]}', b'{"step":1e9,"time":1,"scalars":{"loss":1}}', b"\xff", b""]
    damaged += [b'{"step":1,"time":1,"scalars":{"loss":%s}}' % value for value in (b"[]", b'"big"', b"1" * 500)]
    damaged += [b'{"step":%s,"time":1,"scalars":{"loss":1}}' % (b"9" * 30), b'{"start":"x"}', b"[" * 10_000]
    write(tmp_path, good() + b"\n".join(damaged) + b"\n" + scalar("loss", 30, 3.0))
    ((curve,), problems) = read(tmp_path)
    assert curve.steps == [*range(20), 30]
    # An empty line is none.
    assert problems == [f"{NAME}: {len(damaged)} damaged lines are left out"]


@settings(deadline=None, max_examples=40)
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
    curves, _ = read(tmp_path)
    assert [(curve.name, curve.steps) for curve in curves] == [("loss", [0, 3]), ("never", []), ("when", [3])]
    assert [(curve.not_finite, curve.first_not_finite) for curve in curves] == [(2, 1), (1, 0), (0, None)]


def test_files_in_a_bucket_are_joined(bucket_server: BucketServer) -> None:
    folder = "gs://bucket-1/train/scalars"
    storage.replace(f"{folder}/{NAME}", good(500))
    storage.replace(f"{folder}/{part_name(2, 0)}", start_line(399, 1.0) + scalar("loss", 400, 1.0))
    assert read_curves(folder, points=1000)[0][0].steps == [*range(401)]
    curves, problems = read_curves("gs://bucket-9/train/scalars")
    assert curves == []
    assert "cannot be listed" in problems[0] and "bucket-9" in problems[0]
