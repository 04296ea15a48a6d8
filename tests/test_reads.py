"""Every byte is read once: counted where the store is read, and by the kernel."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline import detectors, evaluation
from pipeline.chunk import ArraySpec
from pipeline.config import load
from pipeline.content import replaced
from pipeline.engine import Dask, Threads, Trace, run, run_jobs
from pipeline.evaluation import Sets
from pipeline.heads import LDAHead
from pipeline.inputs import fit_jobs, with_head
from pipeline.metrics import Accuracy, IoU
from pipeline.procedure import Scored
from pipeline.store import Store, reader

TRAIN_ROWS, ROWS, TOKENS, D, K = 9600, 640, 16, 128, 5
ALL = ("msp", "max_logit", "energy", "mahalanobis", "relative_mahalanobis", "kl_matching", "she",
       "vim")  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = Store.create(tmp_path_factory.mktemp("reads") / "feats.zarr")
    rng = np.random.default_rng(0)
    for name, shift in (
        ("id/train", 0.0),
        ("id/test", 0.0),
        ("ood/near/a", 1.0),
        ("ood/far/b", 3.0),
    ):
        n = TRAIN_ROWS if name == "id/train" else ROWS
        labels = rng.integers(0, K, n) if name.startswith("id") else np.full(n, -1)
        features = rng.standard_normal((n, TOKENS, D)) + shift
        features += 2 * np.eye(K, D)[labels][:, None, :]
        arrays = {
            "features": ArraySpec((TOKENS, D), "float32", "TD"),
            "logits": ArraySpec((K,), "float32", "K"),
            "labels": ArraySpec((), "int64"),
        }
        writer = made.create_split(
            name, arrays, classes=K, rows=n, block_nbytes=2**22, chunk_nbytes=2**20
        )
        logits = rng.standard_normal((n, K)) + 4 * np.eye(K)[labels]
        for block in writer.blocks:
            part = slice(block.start, block.stop)
            writer.write(
                block.index,
                {
                    "features": features[part].astype("f4"),
                    "logits": logits[part].astype("f4"),
                    "labels": labels[part],
                },
            )
    return made


def lda_detectors():
    return {name: with_head(detectors.load(name)(), LDAHead()) for name in ALL}


def reads_of(split: str) -> Counter:
    return Counter({key[1:]: n for key, n in reader.READS.items() if key[0] == split})


def test_eight_detectors_read_each_chunk_once_per_pass(store):
    split = store.split("id/train")
    trace = Trace()
    reader.reset_reads()
    jobs = {name: _job(made, split) for name, made in lda_detectors().items()}
    run_jobs(jobs, Threads(2), trace=trace)
    assert len(trace.passes) == 2
    features = {chunk: n for (name, chunk), n in reads_of("id/train").items() if name == "features"}
    assert len(features) >= 10
    assert set(features.values()) == {2}
    assert trace.read_nbytes == sum(pass_.read_nbytes for pass_ in trace.passes)


def all_jobs(split):
    """The detectors of configs/all.yaml on a head by lda, and that head."""
    entries = load(Path(__file__).parent.parent / "configs" / "all.yaml").detectors
    fewer = {"padim": replaced(entries["padim"], channels=20)}  # of 128 features instead of 1,280
    return fit_jobs({**entries, **fewer}, split, LDAHead())


def test_forty_detectors_read_each_chunk_once_in_each_of_at_most_four_passes(store):
    split = store.split("id/test")
    jobs, trace = all_jobs(split), Trace()
    assert len(jobs) > 40
    reader.reset_reads()
    run_jobs(jobs, Threads(2), trace=trace)
    passes = [pass_ for pass_ in trace.passes if any("features" in w.fields for w in pass_.works)]
    assert len(passes) <= 4
    features = {chunk: n for (name, chunk), n in reads_of("id/test").items() if name == "features"}
    assert set(features.values()) == {len(passes)}


def _job(made, *splits):
    from pipeline.engine import Job

    return Job(made, {"train": splits})


def test_a_metric_over_logits_and_labels_opens_no_features(store):
    reader.reset_reads()
    run({"accuracy": Accuracy(), "iou": IoU()}, store.split("id/test"))
    assert {name for name, _ in reads_of("id/test")} == {"logits", "labels"}
    assert set(reads_of("id/test").values()) == {1}


def test_an_evaluation_reads_every_set_once(store):
    fitted = run(lda_detectors(), store.split("id/train"))
    views = {name: Scored(scorer) for name, scorer in fitted.items()}
    sets = Sets(
        store.split("id/test"),
        {"near": [store.split("ood/near/a")], "far": [store.split("ood/far/b")]},
    )
    reader.reset_reads()
    run_jobs(evaluation.jobs(views, sets, None, tables=True), Threads(2))
    for split in sets.all:
        assert set(reads_of(split.name).values()) == {1}


def _bytes_read() -> int:
    """Bytes that read calls of this process returned so far, as the kernel counts them."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs the kernel's I/O counters")
def test_the_kernel_counts_no_more_than_the_pruned_arrays_once_per_pass(
    store, dask_client, tmp_path
):
    split = store.split("id/train")
    # Imports and metadata are read before counting.
    run(lda_detectors(), split, Dask(dask_client, tmp_path / "warm"))
    before = sum(dask_client.run(_bytes_read).values())
    trace, execute = Trace(), Dask(dask_client, tmp_path / "counted")
    run_jobs(
        {name: _job(made, split) for name, made in lda_detectors().items()}, execute, trace=trace
    )
    read = sum(dask_client.run(_bytes_read).values()) - before
    logical = sum(pass_.read_nbytes for pass_ in trace.passes)
    assert logical == 2 * TRAIN_ROWS * (TOKENS * D * 4 + 8)
    # The second pass reads the float64 means that the first one kept, in place of the tokens.
    expected = TRAIN_ROWS * (TOKENS * D * 4 + 8 + D * 8 + 8)
    assert trace.read_nbytes == expected
    partials = sum(path.stat().st_size for path in tmp_path.rglob("counted/partials/*/*.npz"))
    assert 0.99 * expected <= read <= 1.05 * expected + partials  # labels are compressed


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs the kernel's I/O counters")
def test_the_kernel_counts_the_tokens_once_for_forty_detectors(store, dask_client, tmp_path):
    split = store.split("id/train")
    jobs = all_jobs(split)
    run_jobs(all_jobs(store.split("id/test")), Dask(dask_client, tmp_path / "warm"))
    before = sum(dask_client.run(_bytes_read).values())
    trace = Trace()
    run_jobs(jobs, Dask(dask_client, tmp_path / "counted"), trace=trace)
    read = sum(dask_client.run(_bytes_read).values()) - before
    kept = sum(path.stat().st_size for path in tmp_path.rglob("counted/**/*") if path.is_file())
    tokens = TRAIN_ROWS * TOKENS * D * 4
    assert len(trace.passes) <= 4
    # Later passes read the means that the first one kept, unless a detector scores tokens.
    assert tokens <= read <= 1.05 * trace.read_nbytes + 2 * kept
