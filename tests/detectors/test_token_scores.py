"""What detectors make of tokens: maps and image scores, taps, and masks, the same for all."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.content import Const, replaced
from pipeline.detectors import load, name_of, names, probed_of, required
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.heads import LinearHead
from pipeline.statistics import fields_of
from pipeline.testing import assert_same, drive, labelled, planted
from pipeline.testing.recipes import Data
from pipeline.views import POOLS, Pooled


def has(name: str, option: str) -> bool:
    return option in {field.name for field in dataclasses.fields(load(name))}


def those_with(option: str) -> list[str]:
    classes = {name: load(name) for name in names() if has(name, option)}
    return [name for name, cls in classes.items() if not (required(cls) or probed_of(cls))]


def head_over(view: Pooled) -> LinearHead:
    weight = 1.5 * np.eye(5, 12) + 0.1
    return LinearHead(Const(weight), Const(4.0 - 0.5 * np.arange(5)), view)


def fitted(name: str, data: Data, **options: Any) -> Any:
    """Return the scorer of a detector, over a head that reads the features which it reads."""
    made = load(name)(**options)
    try:
        return drive.outcome(made, data.cut())
    except ConfigError:  # stored logits are not enough
        view = Pooled(getattr(made, "pool", "mean"), getattr(made, "field", "features"))
        return drive.outcome(replaced(made, head=head_over(view)), data.cut())


def with_tap(data: Data, *, swapped: bool) -> Data:
    """Return rows of two taps: their own features, and others that fit the same head."""
    own = data.arrays["features"]
    other = np.abs(own[:, ::-1] * 0.5 + 1).astype("f4")
    first, second = (other, own) if swapped else (own, other)
    return data.with_arrays(features=first, tap=second)


@pytest.mark.parametrize("name", those_with("field"))
def test_field_selects_a_tap(name: str) -> None:
    plain = [with_tap(d, swapped=False) for d in (labelled(), planted())]
    swapped = [with_tap(d, swapped=True) for d in (labelled(), planted())]
    of_features = fitted(name, plain[0])
    of_tap = fitted(name, swapped[0], field="tap")
    assert "tap" in fields_of(*of_tap.views)
    assert "features" not in fields_of(*of_tap.views)
    expected = drive.scores_of(of_features, plain[1].cut())
    assert_same(drive.scores_of(of_tap, swapped[1].cut()), expected)


@pytest.mark.parametrize("how", [how for how in POOLS if how not in ("mean", "cls")])
@pytest.mark.parametrize("name", those_with("pool"))
def test_every_way_of_pooling_is_that_of_pooled_features(name: str, how: str) -> None:
    vectors = []
    for data in (labelled(), planted()):
        ((chunk,),) = drive.chunks(data.cut(), data.arrays)
        vectors.append(data.with_arrays(features=Pooled(how)(chunk)))
    expected = drive.scores_of(fitted(name, vectors[0]), vectors[1].cut())
    found = drive.scores_of(fitted(name, labelled(), pool=how), planted().cut())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


TOKEN_SCORERS = those_with("image")


@pytest.mark.parametrize("name", TOKEN_SCORERS)
def test_maps_and_image_scores_can_both_be_had(name: str) -> None:
    train, test = labelled(rows=120), planted(rows=20)
    detector = load(name)(image="mean", **({"pool": "tokens"} if has(name, "pool") else {}))
    fits = ff.fit({"it": detector}, {n: train.arrays[n] for n in ("features", "labels")})
    features = test.arrays["features"]
    maps = ff.score(fits, features)["it"]
    assert maps.shape == features.shape[:2]
    images = ff.score(fits, features, per_image=True)["it"]
    np.testing.assert_allclose(images, maps.mean(axis=1), rtol=1e-12)
    mask = np.ones(features.shape[:2], bool)
    mask[:, 2], mask[4] = False, False
    given = {"features": features, "mask": mask}
    with_holes = ff.score(fits, given)["it"]
    assert_same(np.isnan(with_holes), ~mask)
    images = ff.score(fits, given, per_image=True)["it"]
    assert np.isnan(images[4])
    kept = np.arange(20) != 4
    np.testing.assert_allclose(images[kept], np.nanmean(with_holes[kept], axis=1), rtol=1e-12)


@pytest.mark.parametrize("name", TOKEN_SCORERS)
def test_an_unknown_image_score_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match="image: 'median'"):
        load(name)(image="median")


@pytest.mark.parametrize("name", sorted({*those_with("field"), *those_with("image")}))
def test_a_tap_that_is_not_there_is_named(name: str) -> None:
    made = load(name)(field="layer3")
    with pytest.raises(FeatfoldError, match=r"layer3|head"):
        drive.outcome(made, labelled(rows=60).cut())
    assert name_of(made) == name


def with_empty_masks(data: Data) -> tuple[Data, Any]:
    """Return rows some of whose masks have no valid token, and which these are."""
    mask = np.ones(data.arrays["features"].shape[:2], bool)
    mask[:, 1], mask[::6] = False, False
    return data.with_arrays(mask=mask), ~mask.any(axis=1)


@pytest.mark.parametrize("name", sorted({*those_with("field"), *those_with("image")}))
def test_a_row_without_a_valid_token_has_no_score(name: str) -> None:
    train, _ = with_empty_masks(labelled(rows=120))
    test, empty = with_empty_masks(planted(rows=30))
    scores = drive.scores_of(fitted(name, train), test.cut())
    assert_same(np.isnan(scores.reshape(30, -1)).all(axis=1), empty)


def test_scores_of_masked_tokens_do_not_depend_on_what_was_kept_before(tmp_path: Any) -> None:
    data, empty = with_empty_masks(labelled(rows=60))
    names = ("features", "labels", "mask")
    store = ff.Store.create(tmp_path / "store")
    specs = {n: ArraySpec(data.arrays[n].shape[1:], data.arrays[n].dtype.name) for n in names}
    writer = store.create_split("id/train", specs, classes=data.classes, rows=60)
    for block in writer.missing():
        part = slice(block.start, block.stop)
        writer.write(block.index, {n: data.arrays[n][part] for n in names})
    split = store.split("id/train")
    fits = ff.fit(["mahalanobis", "ctm"], split)  # keeps the pooled copy of what it read
    for found in ff.score(fits, split).values():
        assert_same(np.isnan(found), empty)
