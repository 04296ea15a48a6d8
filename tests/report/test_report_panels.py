"""Panels of segmented images: what is drawn where, and in which colours."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.report.panels import ERROR, Sample, class_colours, panels, pixels

NAMES = ("background", "cat", "dog", "bird")


def sample(rows: int = 20, columns: int = 20) -> Sample:
    """A cat on the left that is predicted as a dog in its lower half; the last row is void."""
    truth = np.zeros((rows, columns), np.int64)
    truth[:, : columns // 2] = 1
    predicted = truth.copy()
    predicted[rows // 2 :, : columns // 2] = 2
    truth[-1] = 255
    return Sample(np.full((rows, columns, 3), 0.5), truth, predicted)


def texts(figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_a_row_for_each_sample_and_a_column_for_each_picture():
    figure = panels([sample(), sample()], NAMES, ignore=(255,), title="val, epoch 3")
    assert [axes.get_title(loc="left") for axes in figure.axes[:4]] == [
        "Image", "Truth", "Prediction", "Errors",
    ]  # fmt: skip
    assert len(figure.axes) == 8
    assert figure.texts[0].get_text() == "val, epoch 3"


def test_the_legend_names_the_classes_that_are_seen():
    figure = panels([sample()], NAMES, ignore=(255,))
    assert texts(figure) == ["background", "cat", "dog", "wrong", "void"]


def test_pixels_have_the_colours_of_their_classes_and_errors_are_red():
    figure = panels([sample()], NAMES, ignore=(255,))
    _, truth, predicted, errors = (axes.images[0].get_array() for axes in figure.axes)
    colours = class_colours(len(NAMES))
    np.testing.assert_allclose(truth[0, 0], colours[1])
    np.testing.assert_allclose(predicted[15, 0], colours[2])
    void = truth[-1, 0]
    np.testing.assert_allclose(errors[-1], np.broadcast_to(void, (20, 3)))
    assert np.ptp(errors[0, 0]) < 1e-9  # right: gray
    wrong = errors[15, 0]
    assert wrong[0] > 2 * wrong[1]
    assert (wrong[0] - wrong[1]) > 0.5 * (ERROR[0] - ERROR[1])


def test_the_share_of_wrong_pixels_is_of_those_that_count():
    figure = panels([sample()], NAMES, ignore=(255,))
    assert figure.axes[3].texts[0].get_text() == f"{9 * 10 / (19 * 20):.1%} wrong"
    nothing = sample()._replace(truth=np.full((20, 20), 255))
    assert panels([nothing], NAMES).axes[3].texts[0].get_text() == "void"


def test_classes_beyond_the_legend_are_counted():
    truth = np.arange(60).reshape(6, 10)
    figure = panels([Sample(np.zeros((6, 10, 3)), truth, truth)], [f"c{i}" for i in range(60)])
    assert texts(figure)[39:] == ["c39", "and 20 more", "wrong", "void"]


@pytest.mark.parametrize("shape", [(20, 20), (10, 40), (48, 16)])
def test_pictures_keep_their_shape_and_are_as_large_as_they_can_be(shape):
    figure = panels([sample(*shape)], NAMES, ignore=(255,))
    picture = pixels(figure)
    assert picture.dtype == np.uint8
    height, width, _ = picture.shape
    (x0, y0), (x1, y1) = figure.axes[1].get_position().get_points()
    assert ((y1 - y0) * height) / ((x1 - x0) * width) == pytest.approx(shape[0] / shape[1], 0.02)
    assert (x1 - x0) > 0.23


def test_the_colour_of_a_class_does_not_change_with_their_number_and_none_are_alike():
    few, many = class_colours(21), class_colours(150)
    np.testing.assert_array_equal(few, many[:21])
    apart = np.linalg.norm(few[:, None] - few[None], axis=-1) + np.eye(21)
    assert apart.min() > 0.08
    assert (many >= 0).all()
    assert (many <= 1).all()
