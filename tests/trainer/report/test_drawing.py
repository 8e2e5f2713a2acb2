"""Pictures: what is on them, and that no name and no number of classes breaks them."""

import numpy as np
import pytest

from trainer.report.drawing import COLUMNS, THUMBNAIL, draw_sheet, png
from trainer.tasks.classes.confusion import MOST_CLASSES, choose_classes, draw_confusion

RED = np.full((8, 8, 3), (200, 0, 0), np.uint8)


def test_a_sheet_has_every_image_in_its_place() -> None:
    images = [np.full((16, 16, 3), 10 * number, np.uint8) for number in range(6)]
    sheet = np.asarray(draw_sheet(images, [["a"]] * 6))
    step = sheet.shape[1] // COLUMNS
    for number in range(6):
        x = 10 + number % COLUMNS * step + THUMBNAIL // 2
        y = 10 + number // COLUMNS * (sheet.shape[0] // 2) + THUMBNAIL // 2
        assert sheet[y, x].tolist() == [10 * number] * 3
    assert sheet[0, 0].tolist() == [255, 255, 255], "light"


@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (129, 40), (40, 3000), (4000, 4000)])
def test_images_of_any_size_take_bounded_room(shape: tuple[int, int]) -> None:
    sheet = draw_sheet([np.zeros((*shape, 3), np.uint8)], [["a", "b"]])
    assert sheet.width < THUMBNAIL + 40 and sheet.height < THUMBNAIL + 80
    assert np.asarray(sheet).min() == 0


def test_captions_are_drawn_and_hostile_ones_are_only_text() -> None:
    with_text = png(draw_sheet([RED], [["zero"]]))
    assert with_text != png(draw_sheet([RED], [["nine"]]))
    assert with_text == png(draw_sheet([RED], [["zero"]])), "equal pictures are equal bytes"
    for name in ("<script>", "a\nb", "\u202eabc", "x" * 10_000, "数字", "", "\0"):
        assert draw_sheet([RED], [[name, name]]).size == draw_sheet([RED], [["zero"]]).size


def test_the_cells_of_a_matrix_have_their_place_and_colour() -> None:
    confusion = choose_classes(["cat", "dog", "owl"], [(0, 0, 9), (0, 2, 1), (1, 1, 5)])
    assert confusion.counts.tolist() == [[9, 0, 1], [0, 5, 0], [0, 0, 0]]
    drawn = np.asarray(draw_confusion(confusion)).astype(int)
    margin = drawn.shape[0] - 3 * 44 - 12
    corners = {
        (row, column): drawn[margin + row * 44 + 5, margin + column * 44 + 5] for row in range(3) for column in range(3)
    }
    assert corners[1, 1][2] > corners[1, 1][0] + 80, "right is blue"
    assert corners[0, 2][0] > corners[0, 2][2] + 10, "wrong is red"
    assert corners[2, 2].tolist() == corners[0, 1].tolist() == [255, 255, 255], "nothing is white"


def test_of_many_classes_those_confused_most_are_shown_and_all_samples_count() -> None:
    names = [f"class {number}" for number in range(1000)]
    cells = [(number, number, 10) for number in range(1000)]
    cells += [(500, 7, 40), (7, 501, 30), (900, 901, 1)]
    confusion = choose_classes(names, cells)
    assert len(confusion.names) == MOST_CLASSES
    assert {"class 500", "class 501", "class 7", "class 900"} <= set(confusion.names)
    assert confusion.left_out == 1000 - MOST_CLASSES + 1
    assert confusion.counts.sum() == 10_000 + 71
    drawn = draw_confusion(confusion)
    assert max(drawn.size) < 1400
    assert len(png(drawn)) < 300_000


def test_one_class_and_no_sample() -> None:
    assert draw_confusion(choose_classes(["only"], [])).size[0] > 44
