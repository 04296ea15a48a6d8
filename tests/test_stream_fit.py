"""Fits of rows that a model hands straight on: the bits of stored ones, and what is refused."""

import multiprocessing
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.content import Const
from pipeline.engine import Job, Streaming, run_jobs, run_serial
from pipeline.errors import (
    BudgetError,
    ConfigError,
    DataError,
    FeatfoldError,
    MissingInputError,
)
from pipeline.evaluation import Tabled
from pipeline.extract.stream import Shape, StreamedSplit
from pipeline.heads import LinearHead
from pipeline.procedure import Scores
from pipeline.statistics import fields_of
from pipeline.store import Store, layout

N, T, D, K = 160, 4, 8, 3
NEEDED = {
    "ash": {"variant": "s"},
    "ensemble": {"detectors": ["msp", "she"]},
    "weighted_energy": {"weights": [1.0, 2.0, 3.0]},
}
"""Options without a default."""
HEAD = LinearHead(Const(np.eye(K, D)), Const(np.zeros(K)))


def draw(seed=3, rows=N):
    """Return tokens (n, t, d) of clusters, and labels, some of them void."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % K
    tokens = np.abs(random.standard_normal((rows, T, D)) + 4 * np.eye(K, D)[labels][:, None, :])
    labels[5:9] = -1
    return tokens.astype("f4"), labels


TOKENS, LABELS = draw()


def both(tokens):
    """A callable that gives tokens and logits."""
    return {"features": tokens, "logits": tokens.mean(dim=1)[:, :K]}


def loader(size=50, tokens=TOKENS, labels=LABELS, **options):
    dataset = TensorDataset(torch.from_numpy(tokens), torch.from_numpy(labels))
    return DataLoader(dataset, **{"batch_size": size, **options})


def fit(names, data=None, **options):
    chosen = (
        names if isinstance(names, dict) else {n: {"name": n, **NEEDED.get(n, {})} for n in names}
    )
    return ff.fit(
        chosen, loader() if data is None else data, **{"model": both, "head": HEAD, **options}
    )


def suited(name):
    """Tell whether a detector takes these arrays: some read what a probe writes."""
    try:
        found = fit([name], stream=True)
    except MissingInputError:
        return False
    except ConfigError:  # it needs a second pass
        return True
    return fields_of(*found[name].scorer.views) <= {"features", "logits"}


NAMES = [name for name in ff.detectors.names() if suited(name)]


def once():
    """Return the detectors that are fitted in one pass, as a plan of all of them finds out."""
    with pytest.raises(ConfigError, match="one pass is enough for") as caught:
        fit(NAMES, stream=True)
    named = str(caught.value).partition("one pass is enough for ")[2].partition(": leave")[0]
    return named.split(", ")


ONCE = once()


def test_the_refusal_names_who_needs_a_second_pass_and_who_does_not():
    assert {"mahalanobis", "knn", "kl_matching", "padim", "she"} <= set(ONCE)
    twice = sorted(set(NAMES) - set(ONCE))
    assert {"openmax", "temperature", "matrix_normal"} <= set(twice)
    for name in twice:
        handed = Counted(loader())
        with pytest.raises(ConfigError, match=rf"stream.*{name} would need a second pass") as found:
            fit([name], handed, stream=True)
        assert found.value.exit_code == 2
        assert handed.given == 1
        assert fit([name]).passes > 1


class Counted:
    """A loader that counts the batches it gave."""

    def __init__(self, batches):
        self.batches, self.given = batches, 0
        self.dataset = getattr(batches, "dataset", None)

    def __iter__(self):
        for batch in self.batches:
            self.given += 1
            yield batch


def in_store(folder, dtype, shape, tokens):
    """Return a stored split of several blocks, the last not full, and a stream of the same rows."""
    features = torch.from_numpy(tokens if shape else tokens.mean(axis=1)).to(getattr(torch, dtype))
    logits = features.float().mean(dim=1)[:, :K] if shape else features.float()[:, :K]
    specs = {
        "features": ArraySpec(tuple(features.shape[1:]), dtype, "TD" if shape else "D"),
        "logits": ArraySpec((K,), "float32", "K"),
        "labels": ArraySpec((), "int64"),
    }
    halves = dtype == "bfloat16"
    bits = features.view(torch.int16).numpy().view("u2") if halves else features.numpy()
    arrays = {"features": bits, "logits": logits.numpy(), "labels": LABELS}
    writer = Store.create(folder).create_split(
        "id/train", specs, classes=K, rows=N, chunk_nbytes=500, block_nbytes=6000 if shape else 2000
    )
    for block in writer.blocks:
        rows = slice(block.start, block.stop)
        writer.write(block.index, {name: array[rows] for name, array in arrays.items()})
    assert len(writer.blocks) > 2
    assert writer.blocks[-1].rows < writer.blocks[0].rows

    def stream(size):
        declared = writer.declared
        lies = Shape("id/train", specs, K, declared.step_rows, declared.block_rows, size, rows=N)
        pieces = (
            {name: array[start : start + size] for name, array in arrays.items()}
            for start in range(0, N, size)
        )
        return StreamedSplit(lies, pieces)

    return Store.open(folder).split("id/train"), stream


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", ["tokens", ""])
def test_a_stream_has_the_bits_of_a_store_of_the_same_blocks(tmp_path, dtype, shape):
    """All detectors in one pass, batches of 1, 7 and 64 rows, beside the model or not."""
    stored, stream = in_store(tmp_path / "s.zarr", dtype, shape, TOKENS)
    names = [name for name in ONCE if shape or name not in PER_TOKEN]
    chosen = ff.inputs.detectors_by_id([{"name": n, **NEEDED.get(n, {})} for n in names])

    def outcomes(split, execute):
        jobs = ff.inputs.fit_jobs(chosen, split, HEAD)
        return run_jobs(jobs, execute)

    expected = outcomes(stored, run_serial)
    for size, execute in (
        (1, Streaming(1)), (7, Streaming()), (64, Streaming(3, 10**6, shrink=1)), (7, Streaming(9)),
    ):  # fmt: skip
        split = stream(size)
        assert outcomes(split, execute) == expected
        assert (split.schema, split.blocks) == (stored.schema, stored.blocks)
    scorer = expected["mahalanobis"]
    table = Job(Tabled(Scores(scorer)), {"train": (stream(7),)})
    plain = Job(Tabled(Scores(scorer)), {"train": (stored,)})
    found = run_jobs({"a": table}, Streaming(2))["a"].array()
    assert np.array_equal(found, run_jobs({"a": plain})["a"].array(), equal_nan=True)


PER_TOKEN = frozenset({"anomaly_dino", "padim", "patchcore", "rankfeat", "tied_positions"})


def test_every_detector_of_one_pass_is_fitted_and_scored_alike_with_and_without_files():
    streamed, filed = fit(ONCE, stream=True), fit(ONCE, stream=False)
    chosen = fit(ONCE)
    for name in ONCE:
        assert streamed[name].scorer == filed[name].scorer == chosen[name].scorer
        assert streamed[name].schema == filed[name].schema
        assert streamed[name].rows == filed[name].rows
    scores = ff.score(streamed, loader(7), model=both, stream=True)
    plain = ff.score(filed, {"features": TOKENS, "logits": both(torch.tensor(TOKENS))["logits"]})
    for name, each in ff.score(filed, loader(64), model=both, stream=False).items():
        assert np.array_equal(scores[name], each)
        assert np.array_equal(scores[name], plain[name])


def test_nothing_is_written_where_one_pass_is_enough(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.extract.loading.TemporaryRows", None)
    for size in (1, 7, 64):
        found = fit(["mahalanobis", "she"], loader(size), cache=tmp_path / "none")
        ff.score(found, loader(size), model=both, cache=tmp_path / "none")
    assert not (tmp_path / "none").exists()


class Endless(IterableDataset):
    """Rows of unknown number."""

    def __iter__(self):
        return zip(TOKENS, LABELS, strict=True)


@pytest.mark.parametrize(
    "data",
    [
        lambda: DataLoader(Endless(), batch_size=7),
        lambda: (pair for pair in loader(7)),
        lambda: list(loader(7)),
        lambda: loader(7, collate_fn=lambda rows: default_collate(rows)),
    ],
    ids=["iterable dataset", "generator", "list", "own collate"],
)
def test_loaders_of_unknown_length(data):
    expected = fit(["mahalanobis"], stream=False)["mahalanobis"]
    found = fit(["mahalanobis", "msp"], data(), stream=True)
    assert found["mahalanobis"].scorer == expected.scorer
    assert found["mahalanobis"].schema.rows == found["msp"].schema.rows == N
    assert fit(["msp"], data(), stream=True)["msp"].schema.rows < 2**30  # none was asked for
    scores = ff.score(found, data(), model=both, stream=True)
    assert np.array_equal(scores["mahalanobis"], expected(loader(), model=both))
    with pytest.raises(ConfigError, match="what knn ask of the data depends on how many rows"):
        fit(["knn", "mahalanobis"], data(), stream=True)
    assert fit(["knn"], data())["knn"].scorer == fit(["knn"], stream=True)["knn"].scorer


@pytest.mark.parametrize("stream", [True, False, None])
def test_the_first_batch_of_unknown_many_is_not_taken_for_all_rows(stream):
    chosen = {"kpca": {"name": "kpca", "components": 6}}
    found = fit(chosen, (pair for pair in loader(4)), stream=stream)
    assert found["kpca"].scorer == fit(chosen)["kpca"].scorer
    with pytest.raises(ConfigError, match="components: 7000 of 8 features"):
        fit({"kpca": {"name": "kpca", "components": 7000}}, stream=stream)


def test_classes_must_be_known_before_the_first_row_is_folded():
    def same(tokens):
        return tokens

    with pytest.raises(ConfigError, match=r"pass classes=, have the model give logits"):
        ff.fit("mahalanobis", loader(), model=same, stream=True)
    found = ff.fit("mahalanobis", loader(), model=same, stream=True, classes=K)
    assert found["mahalanobis"].scorer == ff.fit("mahalanobis", loader(), model=same)[
        "mahalanobis"
    ].scorer  # fmt: skip
    with pytest.raises(DataError, match=r"below 2 .* row 2: 2"):
        ff.fit("mahalanobis", loader(), model=same, stream=True, classes=2)


def test_a_loader_without_one_label_is_an_error_that_says_so():
    void = loader(labels=np.full(N, -1))
    for stream in (None, True, False):
        with pytest.raises(DataError, match="of 160 rows of the loader none has a label >= 0"):
            fit(["mahalanobis"], void, stream=stream)


def test_memory_that_would_need_stripes_or_another_process_is_refused():
    with pytest.raises(BudgetError, match=r"over a stream needs .* beside its model") as found:
        fit(["mahalanobis"], stream=True, memory="1MiB")
    assert found.value.exit_code == 3
    with pytest.raises(ConfigError, match="in the process of its model"):
        fit(["mahalanobis"], stream=True, cluster="local")
    with pytest.raises(ConfigError, match="needs a model="):
        ff.fit("mahalanobis", (TOKENS, LABELS), stream=True)
    with pytest.raises(ConfigError, match="expected True, False"):
        fit(["mahalanobis"], stream="yes")


def broken(batches, error):
    """Yield batches, and raise in the one numbered 17."""
    for number, batch in enumerate(batches):
        if number == 17:
            raise error
        yield batch


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error", [OSError("no such image"), KeyboardInterrupt()])
def test_what_a_loader_raises_says_where_and_leaves_nothing(tmp_path, workers, stream, error):
    with pytest.raises(type(error)) as found:
        fit(
            ["mahalanobis"], broken(loader(7), error), stream=stream, workers=workers,
            cache=tmp_path,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert found.value.__notes__[-1] == "id/train: batch 17 of the loader, from row 119 on"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_a_model_raises_in_the_middle_names_batch_and_rows(tmp_path, workers):
    def fails(tokens):
        if torch.equal(tokens, torch.from_numpy(TOKENS[119:126])):
            raise RuntimeError("unplugged")
        return both(tokens)

    with pytest.raises(DataError, match=r"batch 17 .* from row 119 on: .* unplugged"):
        fit(["mahalanobis"], loader(7), model=fails, stream=True, workers=workers, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []
    wrong = TOKENS.copy()
    wrong[120, 2, 5] = np.nan
    with pytest.raises(DataError, match=r"first row 120, columns \[5\]"):
        fit(["mahalanobis"], loader(7, tokens=wrong), stream=True, workers=workers)
    skipped = fit(["mahalanobis"], loader(7, tokens=wrong), stream=True, nonfinite="skip")
    assert skipped["mahalanobis"].rows == (N - 5, N)


def test_a_loader_that_ends_before_it_said_is_an_error():
    class Short:
        def __len__(self):
            return 20

        def __iter__(self):
            return (batch for batch, _ in zip(loader(10), range(12), strict=False))

    for stream in (None, False):
        with pytest.raises(DataError, match=r"after 12 batches with 120 rows, .* 20 batches"):
            fit(["mahalanobis"], Short(), stream=stream)


def test_a_stream_is_read_once():
    _, stream = (
        None,
        StreamedSplit(Shape("id/train", {"labels": ArraySpec((), "int64")}, K, 8, 8, 4), iter(())),
    )
    assert list(stream.pieces(frozenset({"labels"}), 4)) == []
    with pytest.raises(FeatfoldError, match="was read, and is asked for again"):
        next(stream.pieces(frozenset({"labels"}), 4))
    assert layout.is_ood(stream.name) is False


def test_validation_rows_are_streamed_as_well(monkeypatch):
    monkeypatch.setattr("pipeline.extract.loading.TemporaryRows", None)
    chosen = {"kl": {"name": "kl_matching", "preset": "openood-1.5"}, "m": {"name": "mahalanobis"}}
    tokens, labels = draw(5, 90)
    found = fit(chosen, val=loader(16, tokens, labels), stream=True)
    rows = {"features": tokens, "logits": both(torch.tensor(tokens))["logits"], "labels": labels}
    train = {"features": TOKENS, "logits": both(torch.tensor(TOKENS))["logits"], "labels": LABELS}
    plain = ff.fit(chosen, train, val=rows, head=HEAD)
    assert found["kl"].scorer == plain["kl"].scorer
    assert found["m"].scorer == plain["m"].scorer
    assert found["kl"].schema.rows == 90


def test_a_model_may_use_the_memory_of_its_outputs_again():
    memory = torch.empty(50, T, D)

    def reuses(tokens):
        out = memory[: len(tokens)]
        out.copy_(tokens)
        return both(out)

    chosen = {"kl": {"name": "kl_matching", "preset": "openood-1.5"}, "m": {"name": "mahalanobis"}}
    tokens, labels = draw(5, 90)
    found, plain = (
        fit(chosen, loader(16), model=model, val=loader(50, tokens, labels), stream=True)
        for model in (reuses, both)
    )
    assert found["kl"].scorer == plain["kl"].scorer
    assert found["m"].scorer == plain["m"].scorer


@pytest.fixture
def two_threads():
    """Have torch compute on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_the_model_runs_where_it_was_called_and_is_left_as_it_was(device):
    """In the calling thread, whose device is current, with as many threads of torch as before."""
    model = torch.nn.Sequential(torch.nn.Linear(D, D), torch.nn.Dropout()).train()
    seen = set()
    model.register_forward_hook(
        lambda *_: seen.add((torch.get_num_threads(), threading.get_ident()))
    )
    options = {"model": model, "device": device, "classes": K, "head": None}
    found = fit(["mahalanobis"], stream=True, **options)
    assert found["mahalanobis"].scorer == fit(["mahalanobis"], stream=False, **options)[
        "mahalanobis"
    ].scorer  # fmt: skip
    assert all(module.training for module in model.modules())
    assert seen == {(2, threading.get_ident())}
    with pytest.raises(DataError, match="not finite"):
        fit(["mahalanobis"], loader(tokens=TOKENS * np.float32(np.inf)), stream=True, **options)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("stream", [True, False])
def test_processes_of_a_loader_end_with_a_fit_that_fails(stream):
    before = set(multiprocessing.active_children())
    wrong = TOKENS.copy()
    wrong[40] = np.nan
    handed = loader(7, tokens=wrong, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(DataError, match="first row 40") as found:
        fit(["mahalanobis"], handed, stream=stream)
    assert found.value is not None  # and with it every frame that was on the way
    assert set(multiprocessing.active_children()) <= before
