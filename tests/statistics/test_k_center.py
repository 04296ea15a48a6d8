"""Greedy k-center: what it covers, its ties, and how far what entries stand for may be."""

import numpy as np
import pytest
from scipy import spatial

from pipeline import arrays
from pipeline.statistics.k_center import PROJECTED, k_center, projected, reaches
from pipeline.testing import drive


def planted(clusters=7, each=20, d=3, seed=0):
    rng = np.random.default_rng(seed)
    centres = 100.0 * rng.standard_normal((clusters, d))
    return np.concatenate([centre + rng.uniform(-1, 1, (each, d)) for centre in centres])


def greedy(entries, count, first, reach):
    """Farthest-first traversal over the whole matrix of distances."""
    far, chosen = spatial.distance.cdist(entries, entries), [first]
    while len(chosen) < count:
        score = far[:, chosen].min(axis=1) + reach / 2
        score[chosen] = -np.inf
        chosen.append(int(score.argmax()))
    return np.array(chosen), far


def test_centres_cover_at_most_twice_as_far_as_the_best():
    entries = planted()
    chosen, _ = k_center(entries, 7, seed=1)
    assert len(set(chosen // 20)) == 7
    radius = spatial.distance.cdist(entries, entries[chosen]).min(axis=1).max()
    assert radius <= 2 * np.sqrt(12)


@pytest.mark.parametrize("reaching", [False, True])
def test_it_chooses_as_over_the_whole_matrix(reaching):
    rng = np.random.default_rng(0)
    entries = rng.standard_normal((200, 12))
    reach = rng.uniform(0, 2, 200) if reaching else np.zeros(200)
    chosen, owner = k_center(entries, 40, 1, reach if reaching else None)
    expected, far = greedy(entries, 40, chosen[0], reach)
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_array_equal(owner, far[:, chosen].argmin(axis=1))
    bound = far[np.arange(200), chosen[owner]] + reach
    each = [bound[owner == place].max() for place in range(40)]
    np.testing.assert_allclose(reaches(entries, reach, chosen, owner), each, rtol=1e-12)


def test_an_offset_moves_no_centre():
    entries = np.random.default_rng(0).standard_normal((200, 12))
    entries = np.round(entries * 2**10) / 2**10  # of which an offset rounds nothing
    for before, after in zip(
        k_center(entries, 40, 1), k_center(entries + 2.0**30, 40, 1), strict=True
    ):
        np.testing.assert_array_equal(before, after)


def test_of_equal_entries_the_first_are_chosen_and_none_twice():
    chosen, owner = k_center(np.ones((50, 4)), 20, 0)
    np.testing.assert_array_equal(chosen, np.arange(20))
    np.testing.assert_array_equal(owner[:20], np.arange(20))
    twins = np.repeat(planted(each=1), 9, axis=0)
    chosen, _ = k_center(twins, 7, 0)
    assert set(chosen % 9) == {0}
    assert len(set(chosen // 9)) == 7


def test_all_entries_may_be_chosen():
    entries = planted()
    chosen, owner = k_center(entries, len(entries), 3)
    np.testing.assert_array_equal(np.sort(chosen), np.arange(len(entries)))
    np.testing.assert_array_equal(chosen[owner], np.arange(len(entries)))


@pytest.mark.parametrize("library", drive.PLACES)
def test_array_libraries_agree(library):
    entries = np.random.default_rng(0).standard_normal((150, 200))
    place = drive.PLACES[library]
    ours = k_center(projected(place.put(entries), 5), 30, 5, place.put(np.arange(150.0) / 150))
    theirs = k_center(projected(entries, 5), 30, 5, np.arange(150.0) / 150)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(arrays.to_host(x), y)


def test_random_directions_keep_distances_about_as_they_are():
    entries = np.random.default_rng(0).standard_normal((100, 2048))
    points = projected(entries, 0)
    assert points.shape == (100, PROJECTED)
    ratio = spatial.distance.pdist(points) / spatial.distance.pdist(entries)
    assert 0.7 < ratio.min() < ratio.max() < 1.3
    narrow = entries[:, :PROJECTED]
    assert projected(narrow, 0) is narrow
