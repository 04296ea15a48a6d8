"""Training that goes on from a checkpoint within an epoch, in a new process as far as it knows."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.metrics import jaccard_score
from test_ddp_lightning import data, loader, module

import pipeline as ff
from pipeline.ddp.checkpoints import Checkpoints, Save
from pipeline.ddp.files import Moment

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH_ROWS = 3


def fit(
    folder: Path, resume: Path | None = None, epochs: int = 1, more: tuple = (), **saving
) -> tuple[object, list[str]]:
    """Train epochs of three batches, saving a checkpoint after each; what was warned of, too."""
    own = ff.ddp.callback(folder / "metrics")
    saving = {"every_n_train_steps": 1, "save_top_k": -1, **saving}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, logger=False, num_sanity_val_steps=0,
        callbacks=[own, *more, ModelCheckpoint(folder / "saved", **saving)],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module(lightning), loader(1), loader(2), ckpt_path=resume)
    own.trainer = trainer
    return own, [str(one.message) for one in caught]


def iou(rows: list[int]) -> float:
    images, masks = data(1)[rows]
    return jaccard_score(masks.ravel(), images.argmax(1).ravel(), average="macro")


@pytest.fixture
def first(tmp_path):
    own, _ = fit(tmp_path)
    assert own.numbers["train_metrics"].rows == 7
    return own


def test_training_metrics_go_on_where_the_checkpoint_was(first, tmp_path):
    """The loader begins again, as Lightning says: its first batch is trained on twice."""
    own, said = fit(tmp_path, tmp_path / "saved" / "epoch=0-step=2.ckpt")
    assert own.run.id == first.run.id
    assert (first.attempt, own.attempt) == (1, 2)
    numbers = own.numbers["train_metrics"]
    assert numbers.rows == 3 * BATCH_ROWS
    expected = iou([*range(2 * BATCH_ROWS), *range(BATCH_ROWS)])
    assert float(numbers["train/iou_mean"]) == pytest.approx(expected, abs=1e-15)
    (epoch,) = ff.ddp.after(own.run, "iou", phase="train")
    assert (epoch.attempt, epoch.rows) == (2, 9)
    assert float(epoch.numbers["train/iou_mean"]) == pytest.approx(expected, abs=1e-15)
    assert not [one for one in said if "count from here on" in one]


def test_an_attempt_says_where_it_began(first, tmp_path):
    own, _ = fit(tmp_path, tmp_path / "saved" / "epoch=0-step=2.ckpt")
    run = own.run
    assert run.beginning(1) == (None, True)
    assert run.beginning(2) == (ff.ddp.Origin(1, 2), True)
    assert own.trainer.current_epoch == 1
    own.trainer.test(module(lightning), loader(3), verbose=False)
    own.trainer.test(
        module(lightning), loader(3), verbose=False,
        ckpt_path=tmp_path / "saved" / "epoch=0-step=1.ckpt",
    )  # fmt: skip
    steps = own.trainer.fit_loop.epoch_loop.batch_progress.total.ready
    assert run.beginning(3) == (ff.ddp.Origin(2, steps), False)
    assert run.beginning(4) == (ff.ddp.Origin(1, 1), False)
    other, _ = fit(tmp_path / "elsewhere", tmp_path / "saved" / "epoch=0-step=2.ckpt")
    assert other.run.path != run.path
    assert other.run.beginning(1) == (None, True)


def test_partials_that_are_gone_are_said_and_training_goes_on(first, tmp_path):
    shutil.rmtree(first.run.path / "attempt-0001" / "running")
    own, said = fit(tmp_path, tmp_path / "saved" / "epoch=0-step=2.ckpt")
    assert any("training metrics of this epoch count from here on" in one for one in said)
    assert own.numbers["train_metrics"].rows == BATCH_ROWS


class CopiesTheSecond(lightning.Callback):
    """Keeps the checkpoint of the second batch beside those that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        if trainer.global_step == 2:
            (saved,) = self.folder.glob("*step=2.ckpt")
            shutil.copyfile(saved, self.folder / "second.ckpt")


def running_batches(run, attempt: int = 1) -> list[int]:
    return [m.batch for m in run.moments(attempt) if m.phase == "running"]


def test_partials_that_no_checkpoint_on_disk_goes_with_are_removed(tmp_path):
    """Of nine checkpoints there are two: the latest, and a copy of the second."""
    own, _ = fit(tmp_path, epochs=3, more=(CopiesTheSecond(tmp_path / "saved"),), save_top_k=1)
    assert len([*(tmp_path / "saved").iterdir()]) == 2
    assert running_batches(own.run) == [2, 7, 8, 9]
    assert len([*(own.run.path / "attempt-0001" / "running").iterdir()]) == 4
    resumed, said = fit(tmp_path, tmp_path / "saved" / "second.ckpt")
    assert resumed.numbers["train_metrics"].rows == 3 * BATCH_ROWS
    assert not [one for one in said if "count from here on" in one]


def test_partials_of_earlier_attempts_go_with_their_checkpoints(tmp_path):
    saved = tmp_path / "saved"
    first, _ = fit(tmp_path, epochs=2, more=(CopiesTheSecond(saved),), save_top_k=1)
    assert running_batches(first.run) == [2, 4, 5, 6]
    for _ in range(2):  # goes on twice from the same checkpoint, as after a node was lost
        own, said = fit(tmp_path, saved / "second.ckpt", epochs=3, save_top_k=1)
        assert not [one for one in said if "count from here on" in one]
    # The last of the first attempt is still on disk, and so is the last of the second.
    assert {path.name.split("-v")[0].removesuffix(".ckpt") for path in saved.iterdir()} == {
        *("second", "epoch=1-step=6", "epoch=2-step=9")
    }
    left = [running_batches(own.run, attempt) for attempt in (1, 2, 3)]
    assert left == [[2, 6], [9], [7, 8, 9]]


def test_what_cannot_be_read_of_earlier_checkpoints_removes_nothing(tmp_path):
    first, _ = fit(tmp_path, epochs=2, save_top_k=1)
    kept = running_batches(first.run)
    (first.run.path / "checkpoints.json").write_text("{")
    (saved,) = (tmp_path / "saved").glob("*.ckpt")
    own, _ = fit(tmp_path, saved, epochs=4, save_top_k=1)
    assert running_batches(own.run) == kept


@pytest.mark.parametrize("saving", [{"save_top_k": -1}, {"save_top_k": 0, "save_last": True}])
def test_partials_of_every_checkpoint_on_disk_stay(tmp_path, saving):
    own, _ = fit(tmp_path, epochs=3, **saving)
    kept = range(1, 10) if saving["save_top_k"] else range(7, 10)
    assert running_batches(own.run) == [*kept]


@pytest.mark.parametrize("own", [{"dirpath": "s3://bucket/run"}, {}])
def test_where_checkpoints_are_out_of_sight_all_partials_stay(tmp_path, own):
    trainer = SimpleNamespace(checkpoint_callbacks=[SimpleNamespace(**own)])
    seen = Checkpoints(tmp_path)
    saves = [Save(1, (Moment("running", n),)) for n in range(9)]
    assert [seen.saving(trainer, save) for save in saves] == [[]] * 9


def test_states_of_several_ranks_go_to_one(first, tmp_path):
    """Where there were two ranks, and there is one now: all that both had counts."""
    import dataclasses

    from pipeline.ddp.attempts import restored

    collection = ff.ddp.Collection("accuracy", classes=2, repeats="none")
    when = Moment("running", 5)
    for rank, hits in enumerate(([1, 1], [1, 0, 0])):
        collection.reset()
        collection.update(torch.tensor(hits), torch.ones(len(hits), dtype=torch.int64))
        partial = collection.partial(first.run.id, 1, when)
        first.run.write(dataclasses.replace(partial, rank=rank, world_size=2))
    where = {"directory": str(first.run.path.parent), "run": first.run.id, "attempt": 1}
    restored(collection, when, where)
    assert collection.rows == 5
    assert float(collection.compute()["accuracy"]) == 3 / 5
