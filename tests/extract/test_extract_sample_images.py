"""The sample image sets: fixed, stratified, disjoint, and of one format."""

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.extract import mean_pixel

datasets = pytest.importorskip("sklearn.datasets", reason="needs featfold[demo]")
pytest.importorskip("PIL", reason="needs featfold[demo]")

from pipeline.extract.sample_images import digits, photo_patches  # noqa: E402


def test_train_and_test_are_disjoint_and_cover_the_classes():
    train, test = digits("train"), digits("test")
    whole = datasets.load_digits()
    assert not set(train.ids) & set(test.ids)
    assert set(train.ids) | set(test.ids) == set(np.flatnonzero(whole.target < 8))
    for part in (train, test):
        np.testing.assert_array_equal(part.labels, whole.target[part.ids])
        assert part.labels.dtype == np.int64
    share = np.bincount(test.labels) / np.bincount(whole.target[whole.target < 8])
    np.testing.assert_allclose(share, 0.25, atol=0.01)


@pytest.mark.parametrize("rows", [8, 100, 700])
def test_every_prefix_is_stratified_and_the_same_each_time(rows):
    some, everything = digits("train", rows=rows), digits("train")
    np.testing.assert_array_equal(some.ids, everything.ids[:rows])
    counts = np.bincount(some.labels, minlength=8)
    expected = rows * np.bincount(everything.labels) / len(everything)
    assert np.abs(counts - expected).max() <= 1


def test_digits_keep_their_grays():
    whole, some = datasets.load_digits(), digits("test", classes=[3], rows=5)
    np.testing.assert_array_equal(some.images, np.round(whole.images[some.ids] * 255 / 16))
    assert some.images.max() == 255


def test_unlabelled_digits_are_void():
    near = digits("all", classes=[8, 9], labelled=False)
    assert len(near) == 174 + 180
    assert set(near.labels) == {-1}


def test_reads_of_any_size_give_the_same_images():
    part = digits("test", rows=9)
    images, labels, ids = part.read(0, 9)
    assert images.shape == (9, 224, 224, 3)
    assert images.dtype == np.uint8
    assert (images == images[..., :1]).all()
    for step in (1, 4, 9):
        pieces = [part.read(start, min(start + step, 9)) for start in range(0, 9, step)]
        np.testing.assert_array_equal(np.concatenate([piece.inputs for piece in pieces]), images)
        np.testing.assert_array_equal(np.concatenate([piece.labels for piece in pieces]), labels)
        np.testing.assert_array_equal(np.concatenate([piece.ids for piece in pieces]), ids)
    assert part.read(4, 4).inputs.shape == (0, 224, 224, 3)


def test_an_enlarged_image_is_the_small_one():
    part = digits("test", rows=4)
    # Pixel 14 of 28 lies 1/56 of a small pixel off its centre, where bicubic gives its value.
    np.testing.assert_allclose(part.read(0, 4).inputs[:, 14::28, 14::28, 0], part.images, atol=8)


def test_patches_have_the_format_of_the_digits_and_do_not_repeat():
    far = photo_patches(rows=520)
    assert set(np.unique(far.images)) <= set(np.unique(digits("all").images))
    assert sorted(far.ids) == list(range(520))
    assert set(far.labels) == {-1}
    np.testing.assert_array_equal(photo_patches(rows=40).ids, far.ids[:40])
    assert not np.array_equal(photo_patches(rows=40, seed=1).ids, far.ids[:40])


def test_a_patch_is_its_place_in_the_photograph():
    far = photo_patches(rows=520)
    photo = datasets.load_sample_images().images[1]
    # The second photograph has 13 x 20 places: place (2, 5).
    row = np.flatnonzero(far.ids == 260 + 2 * 20 + 5)[0]
    cut = photo[64:96, 160:192].astype(float) @ [0.299, 0.587, 0.114]
    expected = cut.reshape(8, 4, 8, 4).mean(axis=(1, 3))
    np.testing.assert_allclose(far.images[row], expected, atol=255 / 32 + 1)


def test_the_far_set_is_not_told_by_its_mean_pixel():
    known, far = mean_pixel(digits("test", rows=100)), mean_pixel(photo_patches(rows=100))
    above = (far[:, None] > known).mean() + 0.5 * (far[:, None] == known).mean()
    assert 0.3 < above < 0.7


def test_impossible_sets_are_refused():
    with pytest.raises(ConfigError, match="train, test or all"):
        digits("val")
    with pytest.raises(ConfigError, match="some of 0-9"):
        digits(classes=[7, 10])
    with pytest.raises(ConfigError, match="some of 0-9"):
        digits(classes=[])
    with pytest.raises(ConfigError, match="between 1 and 520"):
        photo_patches(rows=521)
    with pytest.raises(ConfigError, match="between 1 and"):
        digits(rows=0)
    with pytest.raises(ConfigError, match="at least 8"):
        photo_patches(patch=4)
    with pytest.raises(DataError, match="has rows 0-3"):
        digits(rows=3).read(0, 4)
