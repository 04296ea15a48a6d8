"""Image folders: classes and order, what images become, and how every mistake is named."""

import os

import numpy as np
import pytest

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.extract import build
from pipeline.extract.data.folder import folder

Image = pytest.importorskip("PIL.Image")


def save(path, color=(10, 20, 30), size=(6, 4), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)


@pytest.fixture
def images(tmp_path):
    """Three classes, whose names and files sort by number, and what is no image."""
    for name, color in (
        ("class3/b.png", 100), ("class2/img10.png", 20), ("class2/img9.PNG", 21),
        ("class2/deep/img1.bmp", 22), ("class1/a.png", 10),
    ):  # fmt: skip
        save(tmp_path / "train" / name, (color, 0, 0))
    (tmp_path / "train" / "class1" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".hidden").mkdir()
    return tmp_path / "train"


def test_sub_folders_are_classes_in_natural_order(images):
    rows = folder(str(images))
    assert list(rows.class_names) == ["class1", "class2", "class3"]
    expected = "class1/a.png class2/deep/img1.bmp class2/img9.PNG class2/img10.png class3/b.png"
    assert list(rows.names) == expected.split()
    batch = rows.read(1, 5)
    assert batch.inputs.shape == (4, 4, 6, 3)
    assert batch.inputs.dtype == np.uint8
    assert batch.inputs[:, 0, 0, 0].tolist() == [22, 21, 20, 100]
    assert batch.labels.tolist() == [1, 1, 1, 2]
    assert batch.ids.tolist() == [1, 2, 3, 4]
    assert rows.attributes["class_names"] == ["class1", "class2", "class3"]
    assert len(rows.read(0, 0).ids) == 0


def test_an_order_in_doubt_is_refused_and_both_orders_can_be_said(tmp_path):
    """torchvision's find_classes sorts names as text, and heads are trained with its labels."""
    for name in ("c1", "c2", "c10"):
        save(tmp_path / name / "x.png")
    with pytest.raises(DataError, match=r"label 1 is c2 in .*, but c10 in .*\[c1, c10, c2, "):
        folder(str(tmp_path))
    named = folder(str(tmp_path), classes=sorted(["c1", "c2", "c10"]))
    assert dict(zip(named.names, named.labels.tolist(), strict=True)) == {
        "c1/x.png": 0, "c10/x.png": 1, "c2/x.png": 2,
    }  # fmt: skip
    natural = folder(str(tmp_path), classes=str(tmp_path))
    assert list(natural.class_names) == ["c1", "c2", "c10"]
    assert folder(str(tmp_path), labelled=False).labels.tolist() == [-1] * 3


def test_an_absent_class_keeps_its_label(images, tmp_path):
    save(tmp_path / "test" / "class3" / "x.png")
    assert folder(str(tmp_path / "test")).labels.tolist() == [0]
    assert folder(str(tmp_path / "test"), classes=str(images)).labels.tolist() == [2]
    named = folder(str(tmp_path / "test"), classes=["class3", "class1"])
    assert named.labels.tolist() == [0]
    with pytest.raises(DataError, match="sub-folders that are no classes: class3; classes are a"):
        folder(str(tmp_path / "test"), classes=["a", "b"])
    for name in ("007", "12"):
        save(tmp_path / "numbered" / name / "x.png")
    numbered = folder(str(tmp_path / "numbered"), classes=100)
    assert numbered.labels.tolist() == [7, 12]
    assert numbered.attributes["class_names"][:2] == ["0", "1"]
    with pytest.raises(DataError, match="no labels below 12, each once: 12;"):
        folder(str(tmp_path / "numbered"), classes=12)
    save(tmp_path / "numbered" / "7" / "x.png")
    with pytest.raises(DataError, match="no labels below 13, each once: "):
        folder(str(tmp_path / "numbered"), classes=13)
    with pytest.raises(ConfigError, match="each once"):
        folder(str(tmp_path / "test"), classes=["class3", "class3"])


def test_a_flat_folder_and_one_that_is_not_labelled_have_no_classes(images, tmp_path):
    save(tmp_path / "flat" / "img2.png", 1, mode="L")
    save(tmp_path / "flat" / "img10.png", 2, mode="L")
    flat = folder(str(tmp_path / "flat"))
    assert list(flat.names) == ["img2.png", "img10.png"]
    assert flat.labels.tolist() == [-1, -1]
    assert "class_names" not in flat.attributes
    assert folder(str(images), labelled=False).labels.tolist() == [-1] * 5
    save(images / "stray.png")
    with pytest.raises(DataError, match=r"stray\.png, beside sub-folders, such as class1: say"):
        folder(str(images))
    assert len(folder(str(images), labelled=True)) == 5
    assert len(folder(str(images), labelled=False)) == 6


def test_links_are_followed_once(images):
    os.symlink(images / "class3", images / "class2" / "linked")
    os.symlink(images / "class2", images / "class2" / "again")
    assert len(folder(str(images))) == 6


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("L", 7, (7, 7, 7)),
        ("RGBA", (1, 2, 3, 255), (1, 2, 3)),
        ("LA", (9, 255), (9, 9, 9)),
        ("CMYK", (0, 0, 0, 0), (255, 255, 255)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_every_image_becomes_rgb(tmp_path, mode, color, expected):
    name = "a.tif" if mode == "CMYK" else "a.png"
    save(tmp_path / name, color, mode=mode)
    assert folder(str(tmp_path)).read(0, 1).inputs[0, 0, 0].tolist() == list(expected)


def test_palettes_with_transparency_become_rgb(tmp_path):
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "a.png", transparency=b"\x00\xff")
    assert folder(str(tmp_path)).read(0, 1).inputs[0, 0, 0].tolist() == [200, 100, 50]


def test_images_are_turned_as_their_exif_data_say(tmp_path):
    image = Image.new("RGB", (6, 4), (0, 0, 0))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter: shown 4 wide and 6 high
    image.save(tmp_path / "a.png", exif=exif)
    found = folder(str(tmp_path)).read(0, 1).inputs
    assert found.shape == (1, 6, 4, 3)
    assert found[0, 0, 3].tolist() == [255] * 3


def test_16_bits_are_refused_for_pillow_would_clip_them(tmp_path):
    Image.fromarray(np.full((4, 4), 4000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png\) has I;16 pixels, of more than 8 bits"):
        folder(str(tmp_path)).read(0, 1)


def test_size_and_crop_are_as_pillow_has_them(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    resized = Image.fromarray(noise).resize((30, 20), Image.Resampling.BICUBIC)
    found = folder(str(tmp_path), size=20).read(0, 1).inputs[0]
    np.testing.assert_array_equal(found, np.asarray(resized))
    middle = folder(str(tmp_path), size=20, crop=16).read(0, 1).inputs[0]
    np.testing.assert_array_equal(middle, np.asarray(resized)[2:18, 7:23])
    assert folder(str(tmp_path), size=[10, 30]).read(0, 1).inputs.shape == (1, 10, 30, 3)
    with pytest.raises(DataError, match="60 x 40 pixels, which is smaller than crop 50"):
        folder(str(tmp_path), crop=50).read(0, 1)


def test_a_transform_makes_the_row(tmp_path):
    torch = pytest.importorskip("torch")
    save(tmp_path / "a.png", (255, 0, 0))

    def to_tensor(image):
        assert image.mode == "RGB"
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255

    rows = folder(str(tmp_path), transform=to_tensor).read(0, 1).inputs
    assert rows.shape == (1, 3, 4, 6)
    assert rows[0, :, 0, 0].tolist() == [1, 0, 0]
    for wrong in ({"size": 3}, {"crop": 3}):
        with pytest.raises(ConfigError, match="a transform makes the whole row"):
            folder(str(tmp_path), transform=to_tensor, **wrong)
    with pytest.raises(DataError, match=r"image 0 \(.*a\.png\): the transform raised ZeroDivision"):
        folder(str(tmp_path), transform=lambda image: 1 / 0).read(0, 1)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"crop": True}, {"size": [3]}, {"size": "big"}])
def test_pixels_are_whole_numbers(tmp_path, wrong):
    save(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="size and crop are pixels"):
        folder(str(tmp_path), **wrong)


def test_a_damaged_image_is_named_with_its_row(images):
    (images / "class2" / "img9.PNG").write_bytes(b"not a png")
    whole = (images / "class3" / "b.png").read_bytes()
    rows = folder(str(images))
    with pytest.raises(CorruptError, match=r"image 2 \(.*class2/img9\.PNG\) cannot be decoded"):
        rows.read(0, 5)
    (images / "class3" / "b.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptError, match=r"image 4 \(.*b\.png"):
        rows.read(4, 5)
    (images / "class3" / "b.png").unlink()
    with pytest.raises(MissingInputError, match=r"b\.png\) is not there any more"):
        rows.read(4, 5)


def test_threads_of_torch_decode_in_order(images):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    rows = folder(str(images))
    whole = rows.read(0, 5).inputs
    try:
        torch.set_num_threads(3)
        np.testing.assert_array_equal(rows.read(0, 5).inputs, whole)
        (images / "class2" / "img9.PNG").write_bytes(b"not a png")
        with pytest.raises(CorruptError, match=r"image 2 \(.*class2/img9\.PNG\) cannot"):
            rows.read(0, 5)
    finally:
        torch.set_num_threads(before)


def test_images_of_two_sizes_need_a_size(tmp_path):
    save(tmp_path / "a.png", size=(6, 4))
    save(tmp_path / "b.png", size=(4, 6))
    with pytest.raises(DataError, match=r"b\.png becomes a row of shape \(6, 4, 3\), .*a\.png"):
        folder(str(tmp_path)).read(0, 2)
    assert folder(str(tmp_path), size=4, crop=4).read(0, 2).inputs.shape == (2, 4, 4, 3)


def test_what_holds_no_images_is_refused(tmp_path):
    with pytest.raises(MissingInputError, match="is not there"):
        folder(str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"holds no images; expected files that end in \.bmp"):
        folder(str(tmp_path))
    with pytest.raises(ConfigError, match=r"did you mean 'labelled'"):
        build("pipeline.extract.data.folder:folder", path=str(tmp_path), labeled=False)


def test_what_becomes_of_images_is_recorded(images):
    def halved(image):
        return np.asarray(image) // 2

    class Named:
        def __call__(self, image):
            return np.asarray(image)

        def __repr__(self):
            return "Named(3)"

    for options, said in (
        ({}, "as they are"),
        ({"size": 8, "crop": 4}, "size 8, bicubic, middle 4 x 4"),
        ({"size": [8, 9]}, "size (8, 9), bicubic"),
        ({"transform": Named()}, "Named(3)"),
        ({"transform": halved}, f"{__name__}.{halved.__qualname__}"),
        ({"transform": "numpy:asarray"}, "numpy.asarray"),
    ):
        assert folder(str(images), **options).attributes["images"] == said


def test_a_renamed_file_is_another_source(images):
    before = folder(str(images)).attributes["names_sha256"]
    (images / "class1" / "a.png").rename(images / "class1" / "c.png")
    assert folder(str(images)).attributes["names_sha256"] != before
