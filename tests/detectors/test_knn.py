import numpy as np
import pytest
import reference_formulas as reference
import torch
from peers import peer
from sklearn.neighbors import NearestNeighbors

from pipeline.detectors.knn import KNN
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.testing import Data, DetectorLaws, drive, recipes


def directions(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)


def kth_distances(bank, x, k, prepare=directions):
    """The k-th smallest of all distances, each from the difference of two rows."""
    bank, x = prepare(bank), prepare(x)
    each = [np.sort(np.sqrt(((bank - row) ** 2).sum(axis=1)))[k - 1] for row in x]
    return np.array(each)


class TestKNN(DetectorLaws):
    detector = KNN(k=5)

    def reference(self, train, test):
        bank, _, _ = reference.fit_rows(train)
        return kth_distances(bank, reference.pooled(test), 5)


class TestKNNOfTokens(DetectorLaws):
    detector = KNN(k=3, pool="tokens", normalize=False, squared=True)
    planted_auroc = 0.9

    def id_train(self):
        return recipes.labelled(rows=80)

    def reference(self, train, test):
        bank = train["features"][train["labels"] >= 0].reshape(-1, 12)
        tokens = test["features"].reshape(-1, 12)
        return kth_distances(bank, tokens, 3, lambda x: x).reshape(-1, 4) ** 2


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, fitted_on, scored, cut=None):
    scorer = drive.outcome(detector, fitted_on.cut())
    return drive.scores_of(scorer, rows(scored).cut(cut))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 0}, "k: 0"),
        ({"max_bank": 0}, "max_bank: 0"),
        ({"image": "median"}, "image: 'median'"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        KNN(**options)


def test_more_neighbours_than_the_bank_holds_are_refused():
    with pytest.raises(DataError, match="k: 41 neighbours of a bank of 40 entries of id/train"):
        drive.outcome(KNN(k=41), rows(noise(40)).cut())
    assert drive.outcome(KNN(k=40), rows(noise(40)).cut()).k == 40


def test_a_k_above_a_twentieth_of_the_bank_is_noted():
    notes = drive.outcome(KNN(k=5), rows(noise(99)).cut()).notes
    assert notes == ("bank of 99 entries, k 5", "k 5 is more than 1 in 20 of the bank")
    assert len(drive.outcome(KNN(k=5), rows(noise(100)).cut()).notes) == 1


def test_rows_that_are_all_void_are_refused():
    void = rows(noise(40)).with_arrays(labels=np.full(40, -1))
    with pytest.raises(DataError, match="id/train: no usable row"):
        drive.outcome(KNN(k=1), void.cut())


@pytest.mark.parametrize("normalize", [True, False])
def test_distances_are_those_of_scikit_learn(normalize):
    x, z = 3 + noise(900, 40), 3 + noise(70, 40, seed=1)
    prepare = directions if normalize else (lambda x: x)
    peer = NearestNeighbors(n_neighbors=17, algorithm="brute").fit(prepare(x))
    expected = peer.kneighbors(prepare(z))[0][:, -1]
    found = scores(KNN(k=17, normalize=normalize), rows(x), z)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_equal_rows_are_at_distance_zero_exactly():
    x = noise(300, 64).astype(np.float32)
    for normalize in (True, False):
        assert (scores(KNN(k=1, normalize=normalize), rows(x), x[:50]) == 0).all()
    twins = np.repeat(x[:30], 10, axis=0)
    assert (scores(KNN(k=10), rows(twins), x[:30]) == 0).all()
    assert (scores(KNN(k=11), rows(twins), x[:30]) > 0.1).all()


def test_near_duplicates_keep_the_digits_of_their_distances():
    x = noise(200, 64)
    z = x[:40] + 1e-9 * noise(40, 64, seed=1)
    expected = kth_distances(x, z, 1)
    found = scores(KNN(k=1), rows(x), z)
    assert expected.max() < 1e-8
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (np.argsort(found) == np.argsort(expected)).all()


def test_zero_vectors_stay_where_they_are():
    x = noise(50)
    x[:3] = 0.0
    z = np.concatenate([np.zeros((2, 12)), noise(5, seed=1)])
    found = scores(KNN(k=1), rows(x), z)
    assert (found[:2] == 0).all()
    np.testing.assert_allclose(scores(KNN(k=4), rows(x), z)[:2], 1.0)  # directions are of length 1
    np.testing.assert_allclose(found, kth_distances(x, z, 1), rtol=1e-9)


def test_a_bank_of_one_row_gives_the_distance_to_it():
    x, z = noise(1), noise(9, seed=1)
    np.testing.assert_allclose(scores(KNN(k=1), rows(x), z), kth_distances(x, z, 1), rtol=1e-9)


def test_a_sweep_over_k_is_one_pass_and_one_search():
    data = rows(noise(300))
    jobs = {f"k{k}": Job(KNN(k=k), {"train": (data.cut(),)}) for k in (17, 50, 64)}
    trace = Trace()
    scorers = run_jobs(jobs, trace=trace)
    assert len(trace.passes) == 1
    assert len({scorer.nearest for scorer in scorers.values()}) == 1
    z = noise(20, seed=1)
    for k in (17, 50, 64):
        found = drive.scores_of(scorers[f"k{k}"], rows(z).cut())
        np.testing.assert_allclose(found, kth_distances(noise(300), z, k), rtol=1e-9)


def test_a_bank_keeps_the_floats_that_it_is_stored_in():
    for dtype, kept in [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]:
        scorer = drive.outcome(KNN(k=1), rows(noise(9).astype(dtype)).cut())
        assert scorer.bank.held.dtype == kept


def test_a_sample_by_ids_does_not_depend_on_the_order_of_the_rows():
    data = rows(noise(200)).with_arrays(ids=np.random.default_rng(3).permutation(1000)[:200])
    shuffled = data.take(np.random.default_rng(4).permutation(200))
    one = drive.outcome(KNN(k=2, max_bank=60), data.cut())
    other = drive.outcome(KNN(k=2, max_bank=60), shuffled.cut([[77, 3], [120]]))
    assert one.bank.entries == 60
    assert one == other


def test_a_row_that_is_not_finite_is_named_or_left_out():
    spoilt = noise(60)
    spoilt[37, 3] = np.nan
    with pytest.raises(DataError, match=r"(?s)id/train.*row 37"):
        drive.outcome(KNN(k=1), rows(spoilt).cut())
    jobs = {"it": Job(KNN(k=1), {"train": (rows(spoilt).cut(),)})}
    bank = run_jobs(jobs, skip_nonfinite=True)["it"].bank
    np.testing.assert_array_equal(bank.held.array, np.delete(spoilt, 37, axis=0))


def test_scores_are_those_of_pytorch_ood():
    x, z = noise(400, 32).astype(np.float32), noise(60, 32, seed=1).astype(np.float32)
    theirs = peer("KNN")(None).fit_features(torch.from_numpy(x), torch.zeros(400))
    expected = theirs.predict_features(torch.from_numpy(z)).numpy()
    found = scores(KNN(**KNN.presets["pytorch-ood-0.4"]), rows(x), z)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (np.argsort(found) == np.argsort(expected)).all()


def test_scores_are_those_of_openood():
    x, z = noise(400, 32), noise(60, 32, seed=1)

    def normalizer(x):  # faiss gives squared distances, and 1e-10 is added to every feature
        return x / np.linalg.norm(x, axis=-1, keepdims=True) + 1e-10

    expected = kth_distances(x, z, 50, normalizer) ** 2
    found = scores(KNN(**KNN.presets["openood-1.5"]), rows(x), z)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (np.argsort(found) == np.argsort(expected)).all()
