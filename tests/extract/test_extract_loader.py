"""Loaders through models: what may come in a batch, what is refused, and what is left behind."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pipeline as ff
from pipeline.errors import BudgetError, ConfigError, DataError, FeatfoldError, MissingInputError
from pipeline.extract.model import Description

K, D = 4, 6
X = np.random.default_rng(0).standard_normal((60, D)).astype("f4")
Y = np.arange(60) % K
X[np.arange(60), Y] += 5


def batches(x=X, y=Y, size=16):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def same(x):
    return x


def scorer(detectors, data, **options):
    return ff.fit(detectors, data, **options)[detectors].scorer


@pytest.fixture(scope="module")
def plain():
    return scorer("mahalanobis", (X, Y))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda: DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_size=16),
        lambda: DataLoader(list(zip(X, Y, strict=True)), batch_size=16),
        lambda: (pair for pair in batches()),
        lambda: [[x, y.tolist()] for x, y in batches()],
        lambda: [(x, y.astype("u1")) for x, y in batches()],
        lambda: [(X[:0], Y[:0]), *batches(size=7), (X[:0], Y[:0])],
    ],
    ids=["tensors", "samples", "generator", "lists", "bytes", "empty batches"],
)
def test_any_loader_of_pairs_gives_the_bits_of_arrays(plain, wrap):
    assert scorer("mahalanobis", wrap(), model=same) == plain


def test_a_loader_of_unknown_length_and_several_processes(plain):
    class Stream(IterableDataset):
        def __iter__(self):
            own = torch.utils.data.get_worker_info()
            yield from [(X[i], Y[i]) for i in range(len(X)) if i // 16 % 2 == own.id]

    # Batches come from the workers in turn.
    loader = DataLoader(Stream(), batch_size=16, num_workers=2, multiprocessing_context="fork")
    assert scorer("mahalanobis", loader, model=same) == plain


class Copied(IterableDataset):
    """All rows from every worker."""

    def __iter__(self):
        yield from zip(X, Y, strict=True)


def test_rows_that_every_worker_gives_are_refused():
    loader = DataLoader(Copied(), batch_size=16, num_workers=2, multiprocessing_context="fork")
    for stream in (False, True):
        with pytest.raises(DataError, match=r"id/train: DataLoader over .*Copied.* same rows") as e:
            scorer("mahalanobis", loader, model=same, stream=stream, classes=K)
        assert "choose num_workers=0" in str(e.value)
        assert "need ids" not in str(e.value)
    fitted = ff.fit("mahalanobis", (X, Y))
    with pytest.raises(DataError, match="its 2 workers give the same rows"):
        ff.score(fitted, loader, model=same)
    alone = DataLoader(Copied(), batch_size=16)
    assert scorer("mahalanobis", alone, model=same) == scorer("mahalanobis", (X, Y))


def test_loaders_that_are_read_in_worker_processes(plain):
    fitted = ff.fit("mahalanobis", batches(), model=same, cluster="local", workers=2)
    assert fitted["mahalanobis"].scorer == plain


def test_dtypes_are_kept_and_bfloat16_is_widened():
    halves = X.astype("f2")
    assert scorer("mahalanobis", batches(), model=lambda x: x.half()) == scorer(
        "mahalanobis", (halves, Y)
    )
    rounded = torch.tensor(X).bfloat16()
    assert scorer("mahalanobis", batches(), model=lambda x: x.bfloat16()) == scorer(
        "mahalanobis", (rounded, Y)
    )


def test_classes_are_given_or_those_of_the_logits_or_of_the_labels():
    def both(x):
        return {"features": x, "logits": x[:, :5]}

    assert ff.fit("mahalanobis", batches(), model=same)["mahalanobis"].schema.classes == K
    assert ff.fit("mahalanobis", batches(), model=both)["mahalanobis"].schema.classes == 5
    fitted = ff.fit("mahalanobis", batches(), model=same, classes=9)
    assert fitted["mahalanobis"].schema.classes == 9
    with pytest.raises(DataError, match="declares 9 classes"):
        ff.fit("mahalanobis", batches(), model=both, classes=9)
    with pytest.raises(DataError, match=r"below 3 .* row 3: 3"):
        ff.fit("mahalanobis", batches(), model=same, classes=3)
    with pytest.raises(DataError, match=r"below 2 .* row 2: 2"):
        ff.fit("msp", batches(), model=lambda x: {"logits": x[:, :2]})


def test_masks_of_tokens_are_used():
    tokens = np.stack([X, np.full_like(X, 1e6)], axis=1)
    mask = np.tile([True, False], (60, 1))

    def padded(x):
        return {"features": x, "mask": torch.tensor(mask)[: len(x)]}

    found = ff.fit("mahalanobis", batches(tokens), model=padded)
    np.testing.assert_allclose(
        found["mahalanobis"](batches(tokens), model=padded),
        ff.fit("mahalanobis", (X, Y))["mahalanobis"](X),
    )


def test_scores_look_at_inputs_only(plain):
    fitted = ff.fit("mahalanobis", (X, Y))
    expected = fitted["mahalanobis"](X)
    alone = DataLoader(TensorDataset(torch.tensor(X)), batch_size=16)
    others = batches(y=np.full(60, 1000))  # classes of another data set
    for loader in (alone, torch.tensor(X).split(16), others, [(x, y, "id") for x, y in batches()]):
        assert np.array_equal(ff.score(fitted, loader, model=same)["mahalanobis"], expected)
    assert np.array_equal(fitted["mahalanobis"](others, model=same), expected)
    threshold = fitted["mahalanobis"].threshold_at(X)
    assert fitted.threshold_at(others, model=same) == {"mahalanobis": threshold}
    found = fitted.predict(others, model=same)["mahalanobis"]
    assert np.array_equal(found, fitted["mahalanobis"].predict(X, threshold))


def test_features_of_another_model_are_refused_after_one_batch():
    torch.manual_seed(0)
    first, second = torch.nn.Linear(D, 3), torch.nn.Linear(D, 3)
    fitted = ff.fit("mahalanobis", batches(), model=first)
    assert fitted["mahalanobis"].source["model"].endswith("Linear")
    ff.score(fitted, batches(), model=first)
    with pytest.raises(DataError, match="fitted on features of weights_sha256"):
        ff.score(fitted, counted := Counted(batches()), model=second)
    assert counted.given == 1
    with pytest.raises(DataError, match=r"rows \(3,\) D; id/test has \(2, 3\) TD"):
        ff.score(fitted, batches(), model=lambda x: x.reshape(-1, 2, 3))
    assert ff.fit("mahalanobis", batches(), model=same)["mahalanobis"].source == {}


class Counted:
    """A loader that counts the batches it gave."""

    def __init__(self, given, rows=None):
        self.batches, self.given = given, 0
        self.dataset = range(rows) if rows else None

    def __iter__(self):
        for batch in self.batches:
            self.given += 1
            yield batch


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"detectors": "vim"}, ConfigError, "needs the weights of the head"),
        ({"memory": "1MiB"}, BudgetError, "refused before reading"),
        ({"detectors": {"name": "mahalanobis", "fit_split": "val"}}, MissingInputError, "val="),
    ],
)
def test_what_cannot_be_is_refused_after_one_batch(tmp_path, options, error, message):
    loader = Counted(batches())
    with pytest.raises(error, match=message):
        ff.fit(
            options.pop("detectors", "mahalanobis"), loader, model=same, classes=K,
            head="stored" if error is ConfigError else None, cache=tmp_path, **options,
        )  # fmt: skip
    assert loader.given == 1
    assert list(tmp_path.iterdir()) == []


def test_rows_that_the_disk_cannot_hold_are_refused_after_one_batch(tmp_path):
    loader = Counted(batches(), rows=10**13)
    with pytest.raises(FeatfoldError, match=r"the rows of the loader take .* are free; .*cache="):
        ff.fit("mahalanobis", loader, model=same, cache=tmp_path)
    assert loader.given == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FeatfoldError, match=r"could not be written .*cache="):
        ff.fit("mahalanobis", batches(), model=same, cache=tmp_path / "file")


@pytest.mark.parametrize(
    ("loader", "model", "error", "message"),
    [
        ([], same, DataError, "the loader gave no rows"),
        ([(X[:0], Y[:0])], same, DataError, "the loader gave no rows"),
        (batches(y=np.full(60, -1)), same, DataError, "of 60 rows .* none has a label >= 0"),
        (7, same, ConfigError, "a int gives no batches"),
        (X, same, ConfigError, "got a ndarray; wrap"),
        ({"features": X}, same, ConfigError, "got a dict; wrap"),
        ((X, Y), same, DataError, "batch 0 .* expected .inputs, labels., got a ndarray"),
        ([X[:4]], same, DataError, "expected .inputs, labels., got a ndarray"),
        ([(X, Y, Y)], same, DataError, "got a tuple of 3"),
        ([{"x": X, "y": Y}], same, DataError, "got a dict of 2"),
        ([(X.tolist(), Y)], same, DataError, "inputs are a list: expected a tensor or array"),
        ([({"x": X, "y": X[:2]}, Y)], same, DataError, "same number of rows, got .*'y': 2"),
        ([(X, Y[:5])], same, DataError, "60 inputs, but 5 labels"),
        ([(X, np.eye(K)[Y])], same, DataError, r"labels of shape \(n,\) and an integer"),
        ([(X, Y + 2**30)], same, DataError, "labels must be below"),
        (batches(), "resnet", ConfigError, "model: 'resnet' cannot be called"),
        (batches(), lambda x: (x, x), DataError, "from row 0 on: the model gave a tuple"),
        (batches(), lambda x: {"features": x, "labels": x}, DataError, "come from the loader"),
        (batches(), lambda x: x[:1], DataError, r"shape \(1, 6\) for 16 inputs"),
        (batches(), lambda x: x[:, :, None, None], DataError, r"x.flatten\(2\).transpose\(1, 2\)"),
        (batches(), lambda x: x @ x, DataError, "batch 0 .*RuntimeError.*inputs were on cpu"),
        (batches(), lambda x: x[:, :0], DataError, "which hold nothing"),
        (
            batches(),
            lambda x: x[:, : len(x) // 3],
            DataError,
            "batch 3 .* from row 48 on: expected",
        ),
    ],
)
def test_what_is_refused_says_what_and_where(tmp_path, loader, model, error, message):
    with pytest.raises(error, match=message):
        ff.fit("mahalanobis", loader, model=model, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_loader_without_a_model_says_what_is_missing():
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)))
    with pytest.raises(ConfigError, match=r"DataLoader.* pass model="):
        ff.fit("mahalanobis", loader)


def test_a_layout_that_is_declared_is_not_mistaken():
    model = torch.nn.Identity()
    model.description = Description(layouts={"features": "DT"})
    with pytest.raises(DataError, match=r"shape \(16, 2, 3\) DT: expected tokens"):
        ff.fit("mahalanobis", batches(X.reshape(60, 2, 3)), model=model)


def test_errors_of_a_loader_are_its_own_and_leave_nothing(tmp_path):
    def broken():
        yield X, Y
        raise OSError("no such image")

    with pytest.raises(OSError, match="no such image"):
        ff.fit("mahalanobis", broken(), model=same, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rows_that_a_killed_fit_left_are_removed_by_the_next(tmp_path):
    script = textwrap.dedent(
        f"""
        import time
        import numpy as np
        import pipeline as ff

        def batches():
            for number in range(100):
                yield np.zeros((8, 1000), "f4"), np.arange(8) % 2
                print(number, flush=True)
            time.sleep(600)

        ff.fit("mahalanobis", batches(), model=lambda x: x, cache={str(tmp_path)!r})
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            if line.strip() == b"99":
                break
        process.send_signal(signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert sum(file.stat().st_size for file in left.glob("*/features")) > 2 * 10**6
    ff.fit("mahalanobis", batches(), model=same, cache=tmp_path)
    assert not left.exists()


def test_importing_the_package_needs_no_torch():
    code = "import sys, pipeline.api, pipeline.loaders; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
