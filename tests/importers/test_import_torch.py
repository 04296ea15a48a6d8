"""Files of torch.save: tensors by dotted name, bfloat16 as it is, and no other object unpickled."""

import os

import numpy as np
import pytest
import torch

import pipeline as ff
from pipeline.errors import CorruptError, DataError
from pipeline.store import Store
from pipeline.store.importers import Unreadable
from pipeline.store.importers.torch_file import FORMAT


class Harmful:
    """Runs when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


def arrays(tmp_path, content, name="a.pt", **options):
    torch.save(content, tmp_path / name, **options)
    return FORMAT.arrays(tmp_path / name)


def test_names_are_dotted_and_a_tensor_alone_is_called_by_its_file(tmp_path):
    found = arrays(tmp_path, {"a": {"b": torch.ones(3, 2), "n": 7}, "text": "x", 1: torch.ones(3)})
    assert sorted(found) == ["1", "a.b"]
    parameter = torch.nn.Parameter(torch.ones(3, 2))
    assert list(arrays(tmp_path, parameter, "feats_3.pth")) == ["feats"]


def test_bfloat16_keeps_its_bits_into_the_store(tmp_path):
    bits = np.random.default_rng(0).integers(0, 0x7F80, (40, 3, 4)).astype("u2")
    tensor = torch.from_numpy(bits).view(torch.bfloat16)
    torch.save({"features": tensor, "labels": torch.arange(40) % 4}, tmp_path / "a.pt")
    ff.import_split(tmp_path / "s.zarr", "id/train", tmp_path / "a.pt", classes=4,
                    layouts={"features": "NTD"})  # fmt: skip
    split = Store.open(tmp_path / "s.zarr").split("id/train")
    assert split.schema.arrays["features"].dtype == "bfloat16"
    (chunk,) = split.read(split.blocks[0], frozenset({"features"}))
    assert (chunk["features"].view("u4") >> 16).astype("u2").tobytes() == bits.tobytes()


def test_rows_that_are_views_of_wider_ones(tmp_path):
    whole = torch.arange(60.0).reshape(10, 2, 3)
    found = arrays(tmp_path, {"cls": whole[:, 0], "same": torch.ones(3).expand(10, 3)})
    np.testing.assert_array_equal(found["cls"][2:7], whole[2:7, 0])
    np.testing.assert_array_equal(found["same"][:], np.ones((10, 3)))


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.eye(3).to_sparse(), "is sparse .*to_dense"),
        (torch.ones(2, 3).T, r"lie apart, strides \(1, 3\); save its contiguous"),
        (torch.zeros(3).to(torch.float8_e4m3fn), "holds float8_e4m3fn"),
        (torch.zeros(3, dtype=torch.complex64), "holds complex64"),
    ],
)
def test_tensors_that_cannot_be_stored_are_listed_beside_others(tmp_path, tensor, why):
    found = arrays(tmp_path, {"x": tensor, "fine": torch.ones(3)})
    assert isinstance(found["x"], Unreadable)
    with pytest.raises(DataError, match=why):
        found["x"][0:1]
    assert found["fine"][:].tolist() == [1, 1, 1]


def test_no_other_object_is_unpickled(tmp_path):
    target = tmp_path / "made"
    with pytest.raises(DataError, match=r"other objects than tensors.*torch\.save\(\{"):
        arrays(tmp_path, {"x": torch.ones(3), "harm": Harmful(str(target))})
    assert not target.exists()
    for content in ({"x": np.ones(3)}, torch.nn.Linear(2, 2)):
        with pytest.raises(DataError, match="other objects than tensors"):
            arrays(tmp_path, content)


def test_other_contents_and_older_files(tmp_path):
    with pytest.raises(DataError, match="holds a tuple; expected a tensor or a dictionary"):
        arrays(tmp_path, (torch.ones(3), torch.ones(3)))
    with pytest.raises(DataError, match="holds no tensors with rows"):
        arrays(tmp_path, {"epoch": 3, "lr": torch.tensor(0.1)})
    with pytest.raises(DataError, match=r"two tensors that would be called a.b"):
        arrays(tmp_path, {"a.b": torch.ones(3), "a": {"b": torch.ones(3)}})
    with pytest.raises(DataError, match=r"was not saved by torch.save of torch 1\.6"):
        arrays(tmp_path, {"x": torch.ones(3)}, _use_new_zipfile_serialization=False)
    (tmp_path / "a.pt").write_bytes(b"text")
    with pytest.raises(DataError, match="was not saved by torch"):
        FORMAT.arrays(tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_an_archive_of_code_is_refused(tmp_path):
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    torch.jit.save(scripted, str(tmp_path / "a.pt"))
    with pytest.raises(DataError, match="TorchScript archive"):
        FORMAT.arrays(tmp_path / "a.pt")


def test_a_file_that_changes_meanwhile(tmp_path):
    rows = arrays(tmp_path, {"x": torch.ones(5, 2)})["x"]
    torch.save({"x": torch.ones(4, 2)}, tmp_path / "a.pt")
    with pytest.raises(CorruptError, match="was changed while it was read"):
        rows[0:2]
