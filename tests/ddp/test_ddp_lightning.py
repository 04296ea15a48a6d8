"""The callback in real trainers of both packages, on one process; what they logged is read back."""

from __future__ import annotations

import importlib
import inspect
import io
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score, recall_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pipeline as ff
from pipeline.ddp.derive import per_class
from pipeline.ddp.loggers import add_figure, add_table
from pipeline.ddp.rows import Expected
from pipeline.ddp.trainer import Loaders, collections_of
from pipeline.errors import ConfigError

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
CLASSES = ("sky", "road", "car", "tram")
TRAM = 3
"""A class that is nowhere, nor ever predicted."""

pytestmark = pytest.mark.filterwarnings("ignore")  # those of trainers are their own affair


def data(seed: int, rows: int = 7) -> TensorDataset:
    rng = np.random.default_rng(seed)
    masks = rng.integers(0, 3, (rows, 8, 8))
    images = np.eye(4)[masks].transpose(0, 3, 1, 2)[:, :3] + rng.normal(0, 0.4, (rows, 3, 8, 8))
    return TensorDataset(torch.from_numpy(images).float(), torch.from_numpy(masks))


def loader(seed: int) -> DataLoader:
    return DataLoader(data(seed), batch_size=3)


def module(package, **options):
    """A module whose weights never change: it predicts the strongest of three channels."""

    class Segmentation(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Conv2d(3, 4, 1)
            with torch.no_grad():
                self.net.weight.copy_(torch.eye(4, 3)[:, :, None, None])
                self.net.bias.copy_(torch.tensor([0.0, 0.0, 0.0, -100.0]))
            averages = ("macro", "none")
            metrics = ff.ddp.Collection(
                [ff.metrics.IoU(average=averages), ff.metrics.Recall(average=averages), "mcc"],
                classes=CLASSES,
            )
            self.train_metrics = metrics.clone(prefix="train/")
            self.val_metrics = metrics.clone(prefix="val/")
            self.test_metrics = metrics.clone(prefix="test/")

        def step(self, batch, metrics):
            imgs, masks = batch
            logits = self.net(imgs)
            metrics.update(logits, masks)
            return torch.nn.functional.cross_entropy(logits, masks)

        def training_step(self, batch, batch_idx):
            return self.step(batch, self.train_metrics)

        def validation_step(self, batch, batch_idx):
            self.step(batch, self.val_metrics)

        def test_step(self, batch, batch_idx):
            self.step(batch, self.test_metrics)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Segmentation(**options)


def right(seed: int, prefix: str) -> dict[str, float]:
    """The numbers that have a value, by scikit-learn, as float32."""
    images, masks = data(seed)[:]
    predicted, truth = images.argmax(1).numpy().ravel(), masks.numpy().ravel()
    found = {f"{prefix}mcc": ff.metrics.mcc}  # replaced below; keeps the order of keys
    for name, score in (("iou", jaccard_score), ("recall", recall_score)):
        each = score(truth, predicted, average=None, labels=[0, 1, 2])
        found |= {f"{prefix}{name}_{CLASSES[c]}": each[c] for c in range(3)}
        found[f"{prefix}{name}_mean"] = each.mean()
        found[f"{prefix}{name}_classes_averaged"] = 3
    from sklearn.metrics import matthews_corrcoef

    found[f"{prefix}mcc"] = matthews_corrcoef(truth, predicted)
    return found


@pytest.fixture(scope="module", params=PACKAGES)
def trained(request, tmp_path_factory):
    """A fit that early stopping ends, and a test; everything that came of it."""
    folder = tmp_path_factory.mktemp("trained")
    package = importlib.import_module(request.param)
    callbacks = importlib.import_module(f"{request.param}.callbacks")
    loggers = importlib.import_module(f"{request.param}.loggers")
    checkpoint = callbacks.ModelCheckpoint(folder / "best", monitor="val/iou_mean", mode="max")
    own = ff.ddp.callback(folder / "metrics", "unet", panels=ff.ddp.Panels(samples=2))
    trainer = package.Trainer(
        accelerator="cpu", devices=1, max_epochs=9, log_every_n_steps=1,
        callbacks=[
            own, checkpoint,
            callbacks.EarlyStopping("val/iou_mean", mode="max", patience=1),
        ],
        logger=loggers.TensorBoardLogger(folder, "tensorboard", "0"),
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    segmentation = module(package)
    trainer.fit(segmentation, loader(1), loader(2))
    fitted = {key: float(value) for key, value in trainer.callback_metrics.items()}
    epochs = trainer.current_epoch
    trainer.test(segmentation, loader(3), verbose=False)
    events = EventAccumulator(str(folder / "tensorboard" / "0"), {"images": 0, "tensors": 0})
    events.Reload()
    return SimpleNamespace(
        folder=folder, own=own, fitted=fitted, epochs=epochs, checkpoint=checkpoint,
        tested={k: float(v) for k, v in trainer.callback_metrics.items()}, events=events,
        package=package,
    )  # fmt: skip


def test_numbers_that_have_a_value_are_logged_and_no_others(trained):
    for seed, prefix, logged in (
        (1, "train/", trained.fitted), (2, "val/", trained.fitted), (3, "test/", trained.tested),
    ):  # fmt: skip
        own = {key: value for key, value in logged.items() if key.startswith(prefix)}
        assert own == {k: pytest.approx(v, abs=1e-7) for k, v in right(seed, prefix).items()}
        assert not any(math.isnan(value) for value in own.values())
        assert f"{prefix}recall_{CLASSES[TRAM]}" not in own
    assert trained.own.numbers["val_metrics"]["val/recall_tram"].reason


def test_checkpoints_and_early_stopping_see_the_numbers(trained):
    assert float(trained.checkpoint.best_model_score) == trained.fitted["val/iou_mean"]
    assert trained.epochs == 2


def test_panels_are_images_in_tensorboard_once_an_epoch(trained):
    events = trained.events.Images("val/panels")
    assert [event.step for event in events] == [3, 6]
    picture = np.asarray(Image.open(io.BytesIO(events[0].encoded_image_string)))
    assert picture.shape[1] > picture.shape[0] > 300
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


def test_the_table_of_classes_is_text_in_tensorboard(trained):
    (event,) = trained.events.Tensors("test/per_class/text_summary")
    lines = event.tensor_proto.string_val[0].decode().splitlines()
    assert lines[0] == "| class | iou | recall |"
    sky, tram, mean = lines[2], lines[5], lines[6]
    values = right(3, "")
    assert sky == f"| sky | {values['iou_sky']:.4f} | {values['recall_sky']:.4f} |"
    assert tram == "| tram | – | – |"
    assert mean.startswith(f"| mean | {values['iou_mean']:.4f} |")


def test_every_epoch_is_kept_for_metrics_after_the_fact(trained):
    epochs = ff.ddp.after(trained.folder / "metrics" / "unet", "f1", phase="val")
    assert [(e.epoch, e.moment.step, e.rows) for e in epochs] == [(0, 3, 7), (1, 6, 7)]
    images, masks = data(2)[:]
    truth, predicted = masks.numpy().ravel(), images.argmax(1).numpy().ravel()
    from sklearn.metrics import f1_score

    expected = f1_score(truth, predicted, average="macro")
    assert float(epochs[1].numbers["val/f1_mean"]) == pytest.approx(expected, abs=1e-15)
    merged = ff.ddp.after(
        trained.folder / "metrics" / "unet", "recall", phase="test", average="none",
        merge_classes={"ground": ["road", "car"]},
    )  # fmt: skip
    images, masks = data(3)[:]
    ground = (masks > 0) & (images.argmax(1) > 0)
    share = float(ground.sum() / (masks > 0).sum())
    assert float(merged[0].numbers["test/recall_ground"]) == pytest.approx(share, abs=1e-7)


def test_the_callback_is_one_of_either_package(trained):
    assert isinstance(trained.own, trained.package.Callback)
    callbacks = [importlib.import_module(name).Callback for name in PACKAGES]
    assert all(isinstance(ff.ddp.callback(), cls) for cls in callbacks)
    copy = pickle.loads(pickle.dumps(trained.own))
    assert copy.options == trained.own.options
    assert type(copy) is type(trained.own)


def test_one_package_is_enough():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['lightning'] = None; import pipeline as ff; "
        "callback = ff.ddp.callback(); import pytorch_lightning; "
        "print(isinstance(callback, pytorch_lightning.Callback))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_without_either_package_the_extra_is_named():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['lightning'] = sys.modules['pytorch_lightning'] = None\n"
        "import pipeline as ff\n"
        "try: ff.ddp.callback()\n"
        "except ff.ddp.lightning.ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "featfold[lightning]" in done.stdout, done.stderr


def collection(prefix: str = "") -> ff.ddp.Collection:
    return ff.ddp.Collection("iou", classes=3, prefix=prefix)


def holder(**held) -> torch.nn.Module:
    made = torch.nn.Module()
    for name, one in held.items():
        setattr(made, name, one)
    return made


def test_collections_are_found_wherever_a_module_holds_them():
    inner = holder(metrics={"valid": collection(), "test": collection()})
    outer = holder(inner=inner, several=[collection("train/")], test_again=inner.metrics["test"])
    found = {one.name: one.phase for one in collections_of(outer, {})}
    assert found == {"several-0": "train", "inner-metrics-valid": "val", "test_again": "test"}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"metrics": collection()}, "is it of train, val or test"),
        ({"train_val": collection()}, "is it of train, val or test"),
        ({"val_metrics": ff.metrics.Collection("iou", classes=3)}, "import it from pipeline.ddp"),
        ({}, "holds no Collection"),
    ],
)
def test_collections_that_cannot_be_used_are_named(held, message):
    with pytest.raises(ConfigError, match=message):
        collections_of(holder(**held), {})


def test_a_phase_can_be_said():
    (found,) = collections_of(holder(metrics=collection()), {"metrics": "test"})
    assert found.phase == "test"


def trainer_of(*loaders, mode="sequential", size=2) -> SimpleNamespace:
    combined = SimpleNamespace(flattened=list(loaders), _mode=mode)
    return SimpleNamespace(
        global_rank=1, world_size=size, fit_loop=SimpleNamespace(_combined_loader=combined),
        test_loop=SimpleNamespace(_combined_loader=combined),
    )  # fmt: skip


def shared(rows: int) -> DataLoader:
    sampler = DistributedSampler(range(rows), 2, 1, shuffle=False)
    return DataLoader(list(range(rows)), batch_size=2, sampler=sampler)


def test_each_loader_of_a_test_has_its_own_repeated_rows():
    loaders = Loaders(trainer_of(shared(5), shared(4)), "test")
    assert loaders.rows() == 9
    assert loaders.expected(1, 0) == Expected(1, 0)  # positions 1, 3, and 5, which repeats
    assert loaders.expected(0, 1) == Expected(2, 2)


def test_loaders_at_once_or_of_unknown_order_only_fail_where_rows_matter():
    for loaders in (
        Loaders(trainer_of(shared(5), shared(5)), "train"),
        Loaders(trainer_of(shared(5), shared(5), mode="min_size"), "test"),
        Loaders(trainer_of(DataLoader(range(5))), "test"),
    ):
        made = collection("val/")
        made.expect(loaders.expected(0))
        made.update(np.array([1]), np.array([1]), ids=["a"])
        with pytest.raises(ConfigError, match="ids="):
            made.update(np.array([1]), np.array([1]))
        assert loaders.rows() is None


def test_rows_of_a_batch_that_repeat_are_left_out_however_it_is_given():
    for parts in ([4], [1, 3], [2, 2], [3, 1]):
        made = collection()
        made.expect(Expected(4, 2))
        start = 0
        for rows in parts:
            made.update(np.full(rows, 1), np.arange(start, start + rows) % 3)
            start += rows
        made.expect(None)
        assert made.rows == 2
        assert float(made.compute()["iou_mean"]) == 0.25  # of 1, 1 against 0, 1


def test_a_batch_with_repeated_rows_must_be_given_whole():
    made = collection()
    made.expect(Expected(4, 2))
    with pytest.raises(ff.ddp.collection.DataError, match="12 rows of a batch of 4"):
        made.update(np.zeros(12, int), np.zeros(12, int))
    made.update(np.zeros(1, int), np.zeros(1, int))
    with pytest.raises(ff.ddp.collection.DataError, match="1 rows of a batch of 4"):
        made.expect(None)


class WandbLogger:
    """Has the calls of Lightning's own, whose package wandb is not there; keeps what they got."""

    def __init__(self, package: str) -> None:
        self.real = importlib.import_module(f"{package}.loggers.wandb").WandbLogger
        self.calls: dict[str, inspect.BoundArguments] = {}

    def __getattr__(self, name):
        signature = inspect.signature(getattr(self.real, name))
        return lambda *a, **k: self.calls.update({name: signature.bind(self, *a, **k)})


@pytest.mark.parametrize("package", PACKAGES)
def test_tables_and_panels_for_wandb_go_by_its_interface(package):
    from pipeline.report.panels import Sample, panels

    logger, made = WandbLogger(package), collection()
    made.update(np.array([0, 1]), np.array([0, 0]))
    add_table(logger, "test/per_class", per_class(made), 5)
    table = logger.calls["log_table"].arguments
    assert table["columns"] == ["class", "iou"]
    assert table["data"] == [["0", 0.5], ["1", 0.0], ["2", None], ["mean", 0.25]]
    assert (table["key"], table["step"]) == ("test/per_class", 5)
    sample = Sample(np.zeros((8, 8, 3)), np.zeros((8, 8), int), np.ones((8, 8), int))
    add_figure(logger, "val/panels", panels([sample], ["a", "b"]), 5)
    (image,) = logger.calls["log_image"].arguments["images"]
    assert image.dtype == np.uint8
    assert image.shape[-1] == 3
