import numpy as np
import pytest
from scipy import spatial, special

from pipeline.chunk import ArraySpec
from pipeline.detectors.patchcore import PatchCore
from pipeline.engine import Job, Threads, Trace, rehearse, run_jobs, run_serial
from pipeline.errors import ConfigError
from pipeline.store import Store
from pipeline.testing import DetectorLaws, assert_same, drive, recipes


def tokens(train):
    return train["features"][train["labels"] >= 0].reshape(-1, 12)


def weighted(bank, test, neighbours):
    """The score of the paper, image by image and over whole distance matrices."""
    scores = []
    for image in test["features"]:
        far = spatial.distance.cdist(image, bank)
        worst = far.min(axis=1).argmax()
        nearest = far[worst].argmin()
        around = spatial.distance.cdist(bank[[nearest]], bank)[0].argsort(kind="stable")
        shares = special.softmax(far[worst][around[:neighbours]])
        scores.append((1 - shares[0]) * far[worst].min())
    return np.array(scores)


class TestPatchCore(DetectorLaws):
    detector = PatchCore(ratio=1.0)

    def reference(self, train, test):
        return weighted(tokens(train), test, 9)


class TestPatchCoreOfTokens(DetectorLaws):
    detector = PatchCore(ratio=1.0, image="max")

    def reference(self, train, test):
        far = spatial.distance.cdist(test["features"].reshape(-1, 12), tokens(train))
        return far.min(axis=1).reshape(-1, 4)


class TestPatchCoreByBlocks(DetectorLaws):
    """A composable coreset that leaves nothing out."""

    detector = PatchCore(ratio=1.0, coreset="composable")

    def reference(self, train, test):
        return weighted(tokens(train), test, 9)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ratio": 0.0}, "ratio: 0"),
        ({"neighbours": 0}, "neighbours: 0"),
        ({"max_bank": 0}, "max_bank: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"image": "median"}, "image: 'median'"),
        ({"coreset": "greedy"}, "coreset: 'greedy' is unknown; choose sample or composable"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        PatchCore(**options)


def test_a_coreset_is_a_share_of_the_tokens_and_says_how_far_it_reaches():
    train, test = recipes.labelled(), recipes.labelled(rows=40, seed=3)
    scorer = drive.outcome(PatchCore(ratio=0.05), train.cut())
    every, bank = tokens(train.upcast()), scorer.bank.held.array
    assert len(bank) == int(0.05 * len(every))
    radius = spatial.distance.cdist(every, bank).min(axis=1).max()
    assert f"covering radius {radius:.4g}" in scorer.notes[0]
    np.testing.assert_allclose(
        drive.scores_of(scorer, test.cut()), weighted(bank, test.upcast(), 9), rtol=1e-9
    )


def test_equal_tokens_make_a_coreset_of_equal_entries():
    train = recipes.labelled().with_arrays(features=np.ones((240, 4, 12), np.float32))
    scorer = drive.outcome(PatchCore(), train.cut())
    scores = drive.scores_of(scorer, recipes.labelled(rows=20).cut())
    assert np.isfinite(scores).all()
    assert "covering radius 0" in scorer.notes[0]


def test_one_entry_weighs_one():
    train, test = recipes.labelled(), recipes.labelled(rows=20, seed=3)
    scorer = drive.outcome(PatchCore(max_bank=1), train.cut())
    far = np.linalg.norm(test.upcast()["features"] - scorer.bank.held.array[0], axis=2)
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), far.max(axis=1), rtol=1e-12)


def coreset_of(detector, rows, sizes=None, execute=None):
    scorer = drive.outcome(detector, rows.cut(sizes), *([execute] if execute else []))
    return scorer.bank.held.array, scorer.notes[0]


@pytest.mark.parametrize("order", ["drawn", "by class"])
def test_a_composable_coreset_covers_what_the_blocks_offer(order):
    rows = recipes.labelled().ordered(order)
    every = tokens(rows.upcast())
    sizes = [[60]] * 4
    found, note = coreset_of(PatchCore(ratio=0.2, max_bank=100, coreset="composable"), rows, sizes)
    sampled, _ = coreset_of(PatchCore(ratio=0.2, max_bank=100), rows, sizes)
    assert found.shape == sampled.shape == (20, 12)
    assert note.startswith("coreset of 20 of 400 tokens sampled block by block, covering radius")
    # Of blocks that offer all of their tokens, the bound is one on all tokens.
    whole, note = coreset_of(PatchCore(ratio=0.02, coreset="composable"), rows, sizes)
    assert len(whole) == int(0.02 * len(every))
    radius = spatial.distance.cdist(every, whole).min(axis=1).max()
    bound = float(note.rpartition(" ")[2])
    assert note.startswith(f"coreset of {len(whole)} of {len(every)} tokens")
    assert radius <= bound * (1 + 1e-3) <= 4 * radius


def test_what_is_rare_is_in_a_composable_coreset_where_a_sample_misses_it():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((4000, 1, 12))
    features[rng.permutation(4000)[:8]] += 100 * np.eye(8, 12)[:, None, :]
    data = {"features": features, "labels": np.zeros(4000, int), "ids": np.arange(4000)}
    rows, sizes = recipes.Data(data, 1), [[200]] * 20

    def rare(detector):
        found, _ = coreset_of(detector, rows, sizes)
        return int((found.max(axis=1) > 50).sum())

    assert rare(PatchCore(max_bank=200, coreset="composable")) == 8
    assert rare(PatchCore(max_bank=200)) < 8


@pytest.mark.parametrize("chunk_rows", [1, 7, 239, 240])
def test_chunks_change_no_bit_of_a_composable_coreset(chunk_rows):
    rows = recipes.labelled()
    detector = PatchCore(ratio=0.1, max_bank=300, coreset="composable")
    sizes = [min(chunk_rows, 240 - start) for start in range(0, 240, chunk_rows)]
    first, note = coreset_of(detector, rows, [[0, *sizes, 0]])
    for execute in (None, Threads(3)):
        again, same = coreset_of(detector, rows, [[240]], execute)
        np.testing.assert_array_equal(first, again)
        assert note == same


def test_a_composable_coreset_does_not_depend_on_the_order_of_rows_in_a_block():
    rows = recipes.labelled().with_arrays(ids=np.arange(240))
    detector = PatchCore(ratio=0.05, max_bank=200, coreset="composable")
    moved = rows.take(np.random.default_rng(1).permutation(240))
    assert_same(*(coreset_of(detector, data, [[240]])[0] for data in (rows, moved)))


def test_a_plan_counts_a_composable_coreset_before_it_is_there():
    rows = recipes.labelled()
    for max_bank in (50, 10**6):
        detector = PatchCore(ratio=0.5, max_bank=max_bank, coreset="composable")
        jobs = {"it": Job(detector, {"train": (rows.cut(),)})}
        passes, planned = rehearse(jobs)
        assert len(passes) == 1
        real = run_jobs(jobs)["it"].bank.held
        counted = planned["it"].bank.held
        assert counted.shape == (int(0.5 * min(max_bank, 240 * 4)), 12)
        assert real.shape[0] <= counted.shape[0]
        assert counted.dtype == real.dtype


def test_appended_blocks_alone_are_read_for_a_composable_coreset(tmp_path):
    rows = recipes.labelled(rows=200)
    names = ("features", "labels")
    layout = {"features": "TD", "labels": ""}
    specs = {n: ArraySpec(rows.arrays[n].shape[1:], str(rows.arrays[n].dtype), layout[n])
             for n in names}  # fmt: skip
    store = Store.create(tmp_path / "feats.zarr")
    row_nbytes = sum(spec.nbytes for spec in specs.values())
    writer = store.create_split(
        "id/train", specs, classes=5, rows=150, block_nbytes=50 * row_nbytes,
        chunk_nbytes=10 * specs["features"].nbytes,
    )  # fmt: skip
    parts = [rows.take(np.arange(start, start + 50)).arrays for start in range(0, 200, 50)]
    parts = [{name: part[name] for name in names} for part in parts]
    for block, part in zip(writer.blocks, parts[:3], strict=True):
        writer.write(block.index, part)
    detector = PatchCore(ratio=0.05, max_bank=100, coreset="composable")

    def fit(execute):
        trace = Trace()
        job = {
            "it": Job(detector, {"train": (Store.open(tmp_path / "feats.zarr").split("id/train"),)})
        }
        return run_jobs(job, execute, trace=trace)["it"], trace.read_nbytes

    cached = Threads(2, tmp_path / "cache")
    first, nbytes = fit(cached)
    assert nbytes == 150 * row_nbytes
    assert fit(cached) == (first, 0)
    writer.append(parts[3])
    second, nbytes = fit(cached)
    assert nbytes == 50 * row_nbytes
    assert second != first
    assert fit(run_serial)[0] == second
