"""``featfold eval``: numbers of predictions in files of every kind, and what it refuses."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image
from sklearn import metrics as sk

K = 4
RNG = np.random.default_rng(3)
TRUTH = RNG.integers(0, K, (40, 12, 9)).astype(np.uint8)
PREDICTED = np.where(RNG.random(TRUTH.shape) < 0.7, TRUTH, RNG.integers(0, K, TRUTH.shape))
PREDICTED = PREDICTED.astype(np.uint8)
VOID = TRUTH.copy()
VOID[:, :2] = 255


@pytest.fixture
def masks(tmp_path):
    np.save(tmp_path / "truth.npy", VOID)
    np.save(tmp_path / "predicted.npy", PREDICTED)
    return tmp_path


@pytest.fixture
def table(tmp_path):
    """A CSV and a Parquet file of labels, classes and scores, and the scores."""
    scores = RNG.normal(size=(300, 3))
    columns = {"label": RNG.integers(0, 3, 300), "predicted": scores.argmax(1)}
    columns |= {f"s_{c}": scores[:, c] for c in range(3)}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=70)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return tmp_path, columns


def measured(cli, *arguments):
    code, out, err = cli("eval", *arguments, "--json")
    assert code == 0, err
    return {key: one["value"] for key, one in json.loads(out)["metrics"].items()}


def test_masks_are_measured_without_what_is_ignored(cli, masks):
    found = measured(
        cli, masks / "predicted.npy", masks / "truth.npy", "--classes", K, "--ignore", 255
    )
    y, p = TRUTH[:, 2:].reshape(-1), PREDICTED[:, 2:].reshape(-1)
    assert found["accuracy"] == sk.accuracy_score(y, p)
    assert found["iou_mean"] == pytest.approx(sk.jaccard_score(y, p, average="macro"), rel=1e-14)
    for c, value in enumerate(sk.jaccard_score(y, p, average=None)):
        assert found[f"iou_{c}"] == pytest.approx(value, rel=1e-14)


def test_folders_of_png_files_give_the_numbers_of_arrays(cli, masks):
    for name, arrays in (("p", PREDICTED), ("y", VOID)):
        (masks / name).mkdir()
        for row, mask in enumerate(arrays):
            Image.fromarray(mask).save(masks / name / f"{row:03}.png")
    options = ("--classes", "a,b,c,d", "--ignore", 255, "-m", "iou", "-m", "mcc")
    arrays = measured(cli, masks / "predicted.npy", masks / "truth.npy", *options)
    assert measured(cli, masks / "p", masks / "y", *options) == arrays
    assert set(arrays) == {
        *("iou_a", "iou_b", "iou_c", "iou_d", "iou_mean", "iou_classes_averaged", "mcc")
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_tables_are_measured(cli, table, kind):
    folder, columns = table
    path = folder / f"t.{kind}"
    found = measured(
        cli, path / "predicted", path / "label", "--classes", 3, "-m", "accuracy", "-m", "kappa"
    )
    assert found["accuracy"] == sk.accuracy_score(columns["label"], columns["predicted"])
    kappa = sk.cohen_kappa_score(columns["label"], columns["predicted"])
    assert found["kappa"] == pytest.approx(kappa, rel=1e-13)
    scores = np.stack([columns[f"s_{c}"] for c in range(3)], axis=1)
    found = measured(
        cli, path / "s_*", path / "label", "--classes", 3, "-m", "top_k_accuracy:top_k=2"
    )
    expected = sk.top_k_accuracy_score(columns["label"], scores, k=2)
    assert next(iter(found.values())) == pytest.approx(expected, rel=1e-14)


def test_binary_scores_have_numbers_of_thresholds_and_of_ranks(cli, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 500)
    s = np.clip((y + rng.normal(size=500)) / 4 + 0.3, 0, 1).astype(np.float32)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "s.npy", s)
    found = measured(
        cli, tmp_path / "s.npy", tmp_path / "y.npy", "--classes", 2, "--task", "binary",
        "--threshold", 0.6, "-m", "precision", "-m", "auroc",
    )  # fmt: skip
    assert found["precision"] == pytest.approx(sk.precision_score(y, s >= np.float32(0.6)))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, s), rel=1e-14)


def test_files_of_numbers_hold_what_was_printed(cli, masks):
    code, out, err = cli(
        "eval", masks / "predicted.npy", masks / "truth.npy", "--classes", "road,car,sky,tree",
        "--ignore", 255, "--out", masks / "out", "-m", "iou", "-m", "f1:absent=zero",
        "-m", "confusion_matrix",
    )  # fmt: skip
    assert code == 0, err
    words = out.split()
    assert words[:3] == ["class", "iou", "f1"]
    assert "road" in words
    results = json.loads((masks / "out/metrics.json").read_text())
    assert results["classes"] == ["road", "car", "sky", "tree"]
    assert np.sum(results["metrics"]["confusion_matrix"]) == 40 * 10 * 9
    with (masks / "out/metrics.csv").open(newline="") as file:
        rows = {row["metric"]: row for row in csv.DictReader(file)}
    shown = float(rows["iou_road"]["value"])
    assert results["metrics"]["iou_road"]["value"] == float(rows["iou_road"]["value"])
    assert f"{shown:.4f}" in words
    assert str(masks / "out/metrics.json") in err
    assert {path.name for path in (masks / "out").glob("*.svg")} == {
        *("iou.svg", "f1.svg", "confusion_matrix.svg")
    }


def test_a_class_that_never_occurs_is_null_with_its_reason(cli, tmp_path):
    np.save(tmp_path / "y.npy", np.array([0, 1, 1]))
    np.save(tmp_path / "p.npy", np.array([0, 1, 0]))
    arguments = ("eval", tmp_path / "p.npy", tmp_path / "y.npy", "--classes", 3, "-m", "recall")
    code, out, _ = cli(*arguments, "--json")
    recall = json.loads(out)["metrics"]["recall_2"]
    assert (code, recall["value"]) == (0, None)
    assert "class 2" in recall["reason"]
    code, out, _ = cli(*arguments)
    assert "mean of 2 of 3 classes" in out


def test_a_confusion_matrix_is_shown_whole_or_by_what_is_confused_most(cli, masks, tmp_path):
    arguments = ("eval", masks / "predicted.npy", masks / "truth.npy", "--ignore", 255)
    code, out, err = cli(*arguments, "--classes", "road,car,sky,tree", "-m", "confusion_matrix")
    expected = sk.confusion_matrix(TRUTH[:, 2:].reshape(-1), PREDICTED[:, 2:].reshape(-1))
    lines = [line.split() for line in out.splitlines()]
    assert code == 0, err
    assert lines[0] == ["confusion_matrix", "road", "car", "sky", "tree"]
    assert [list(map(int, line[1:])) for line in lines[1:5]] == expected.tolist()
    _, out, _ = cli(*arguments, "--classes", 40, "-m", "confusion_matrix")
    np.fill_diagonal(expected, 0)
    first = next(line.split() for line in out.splitlines() if line[:1].isdecimal())
    assert tuple(map(int, first[:2])) == np.unravel_index(expected.argmax(), (K, K))
    assert int(first[2]) == expected.max()


def test_a_predicted_void_has_a_column_of_its_own(cli, tmp_path):
    np.save(tmp_path / "y.npy", np.array([0, 1, 1, 255]))
    np.save(tmp_path / "p.npy", np.array([0, 1, 255, 1]))
    arguments = ("eval", tmp_path / "p.npy", tmp_path / "y.npy", "--classes", 2, "--ignore", 255)
    code, out, err = cli(*arguments, "-m", "confusion_matrix", "-m", "accuracy")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert ["confusion_matrix", "0", "1", "ignored"] in lines
    assert ["1", "0", "1", "1"] in lines
    _, out, _ = cli(*arguments, "-m", "confusion_matrix", "--json")
    found = json.loads(out)["metrics"]
    assert found == {"confusion_matrix": [[1, 0], [0, 1]], "confusion_matrix_undecided": [0, 1]}


def test_curves_and_tables_say_where_their_numbers_are(cli, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 500)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "s.npy", rng.random(500))
    arguments = ("eval", tmp_path / "s.npy", tmp_path / "y.npy", "--task", "binary")
    code, out, err = cli(*arguments, "-m", "roc", "-m", "reliability")
    assert code == 0, err
    assert [line.split(":")[0] for line in out.splitlines()] == ["roc", "reliability"]
    _, out, _ = cli(*arguments, "-m", "roc", "-m", "reliability", "-m", "nll", "--json")
    found = json.loads(out)["metrics"]
    assert found["roc"]["positives"] == y.sum()
    assert found["roc"]["curve"]["tpr"][-1] == 1
    assert sum(found["reliability"]["rows"]) == 500


def test_an_infinite_number_is_named(cli, tmp_path):
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    np.save(tmp_path / "s.npy", np.array([1.0, 1.0]))
    code, out, err = cli(
        "eval", tmp_path / "s.npy", tmp_path / "y.npy", "--task", "binary", "-m", "nll", "--json",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["metrics"]["nll"]["value"] == "inf"


def test_many_classes_are_shown_by_the_lowest(cli, tmp_path):
    labels = np.arange(3000) % 1000
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "p.npy", np.where(labels == 537, 0, labels))
    arguments = ("eval", tmp_path / "p.npy", tmp_path / "y.npy", "--classes", 1000, "-m", "recall")
    code, out, err = cli(*arguments)
    lines = out.splitlines()
    assert code == 0, err
    assert lines[1].split() == ["537", "0.0000"]
    assert len(lines) < 30
    assert "980 more" in out


@pytest.mark.parametrize("place", ["file", "file/deeper"])
def test_where_numbers_go_is_looked_at_before_anything_is_read(cli, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    code, _, err = cli("eval", "gone.npy", "gone.npy", "--classes", 2, "--out", tmp_path / place)
    assert code == 2
    assert "file is a file; name a directory" in err
    code, _, err = cli("eval", "--epochs", tmp_path / "gone", "--out", tmp_path / place)
    assert (code, "--out" in err) == (2, True)
    assert (tmp_path / "file").read_text() == "mine"


def test_two_columns_of_one_name_are_refused(cli, tmp_path):
    (tmp_path / "t.csv").write_text("label,p,label\n0,1,1\n1,1,0\n")
    code, out, err = cli("eval", tmp_path / "t.csv/p", tmp_path / "t.csv/label", "--classes", 2)
    assert (code, out) == (4, "")
    assert "2 columns of the name 'label'" in err
    (tmp_path / "t.csv").write_text("label,p,x,x\n0,1,1,1\n1,1,0,0\n")
    code, _, err = cli(
        "eval", tmp_path / "t.csv/p", tmp_path / "t.csv/label", "--classes", 2, "-m", "accuracy"
    )
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "4"), 4, ["255", "ignore"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "3", "--ignore", "255"), 4,
         ["outside 0 to 2"]),
        (("{d}/gone.npy", "{d}/truth.npy", "--classes", "4"), 4, ["gone.npy", "not there"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "four"), 4, ["neither"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "a,a"), 2, ["two are called"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "4", "-m", "iuo"), 2, ["'iou'"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "4", "-m", "iou:averages=micro"), 2,
         ["average"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "4", "-m", "iou:micro"), 2,
         ["OPTION=VALUE"]),
        (("{d}/predicted.npy", "{d}/truth.npy", "--classes", "4", "-m", "iou", "-m", "iou"), 2,
         ["twice"]),
        (("{d}/t.csv/label", "{d}/t.csv/truth", "--classes", "4"), 2,
         ["no column 'truth'", "pattern such as p_*"]),
        (("{d}/gone", "{d}/masks", "--classes", "4"), 4, ["gone is not there"]),
        (("{d}/empty", "{d}/masks", "--classes", "4"), 4, ["empty holds no PNG"]),
        (("{d}/empty", "{d}/empty", "--classes", "4"), 4, ["empty holds no", "PNG"]),
        (("{d}/floats.npy", "{d}/floats.npy", "--classes", "4"), 4, ["labels have dtype"]),
        (("{d}/floats.npy", "{d}/ids.npy", "--classes", "4"), 4,
         ["cast classes to integers", "binary"]),
        (("{d}/logits.npy", "{d}/ids.npy", "--task", "binary"), 4,
         ["outside [0, 1]", "threshold=0 for logits"]),
        (("{d}/s.npy", "{d}/ids.npy", "--classes", "4", "-m", "roc"), 2,
         ["roc has no multiclass task", "task='binary'"]),
        (("{d}/s.npy", "{d}/ids.npy", "--classes", "4", "-m", "top_k_accuracy:k=2"), 2,
         ["did you mean 'top_k'"]),
        (("{d}/t.csv/name", "{d}/t.csv/label", "--classes", "4"), 4, ["name", "numbers"]),
        (("{d}/holes.csv/a", "{d}/holes.csv/b", "--classes", "4"), 4, ["lacks 1"]),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_ends_with_its_code_and_one_line(
    cli, masks, arguments, code, words
):
    (masks / "t.csv").write_text("label,name\n0,cat\n1,dog\n")
    (masks / "holes.csv").write_text("a,b\n0,1\n,0\n")
    (masks / "masks").mkdir()
    (masks / "empty").mkdir()
    Image.fromarray(PREDICTED[0]).save(masks / "masks" / "a.png")
    np.save(masks / "floats.npy", np.array([0.0, 1.0]))
    np.save(masks / "logits.npy", np.array([-3.0, 4.0]))
    np.save(masks / "ids.npy", np.array([0, 1]))
    np.save(masks / "s.npy", np.zeros((2, 4)))
    ended, out, err = cli("eval", *(text.format(d=masks) for text in arguments))
    assert ended == code, err
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_several_averages_and_columns_by_a_pattern(cli, table):
    folder, columns = table
    found = measured(
        cli, folder / "t.csv/s_*", folder / "t.csv/label", "--classes", 3,
        "-m", "recall:average=none+macro+micro",
    )  # fmt: skip
    recalls = sk.recall_score(columns["label"], columns["predicted"], average=None)
    assert [found[f"recall_{c}"] for c in range(3)] == pytest.approx(recalls, rel=1e-14)
    assert found["recall_mean"] == pytest.approx(recalls.mean(), rel=1e-14)
    assert found["recall_micro"] == sk.accuracy_score(columns["label"], columns["predicted"])
