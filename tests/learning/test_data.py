"""A data set that loads is finite, flat and labelled from 0; anything else is refused by name."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from efhc.base.errors import InputError
from efhc.base.inputs import sha256
from efhc.learning.data import AnyData, Dataset, Digits, NpzFile
from efhc.learning.data.digits import read_digits
from efhc.learning.data.fashion_mnist import parse_idx

Save = Callable[..., Path]
VALIDATION_SHA256 = "6a47ee6d0128c2c12a985a6dc8f779893f35398b5659d730ecc07d770da7cfa1"
"""Of the quarter of the digits that is set aside: tuned settings must be found again."""


def arrays(**other: object) -> dict[str, object]:
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.random((6, 3)),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": rng.random((4, 3)),
        "y_test": np.array([0, 1, 2, 0]),
    }
    return {name: array for name, array in {**good, **other}.items() if array is not None}


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def put(**other: object) -> Path:
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays(**other))
        return path

    return put


def refused(path: Path, **policy: object) -> InputError:
    with pytest.raises(InputError) as caught:
        NpzFile(path=path, **policy).load()
    assert "\n" not in str(caught.value)
    return caught.value


# Digits


def test_digits_shape_and_labels():
    data = Digits().load()
    assert data.x_train.shape == (1438, 64)
    assert data.x_test.shape == (359, 64)
    assert data.shape == (8, 8)
    assert data.features == 64
    assert data.classes == 10
    assert set(data.y_train) == set(data.y_test) == set(range(10))
    assert data.name == "digits"
    assert len(data.sha256["digits"]) == 64


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_digits_are_standardised_by_the_training_set(precision: str):
    raw, scaled = Digits(standardize=False).load(precision), Digits().load(precision)
    tolerance = 1e-5 if precision == "float32" else 1e-12
    assert scaled.x_train.dtype == scaled.x_test.dtype == precision
    assert scaled.inputs(scaled.x_train) is scaled.x_train  # scaled already
    assert raw.x_train.min() == 0
    assert raw.x_train.max() == 1
    assert scaled.x_train.mean(dtype=np.float64) == pytest.approx(0, abs=tolerance)
    assert scaled.x_train.std(dtype=np.float64) == pytest.approx(1, abs=tolerance)
    mean, std = raw.x_train.mean(dtype=np.float64), raw.x_train.std(dtype=np.float64)
    np.testing.assert_allclose(scaled.x_test, (raw.x_test - mean) / std, rtol=0, atol=10 * tolerance)


def test_digits_are_those_of_scikit_learn_bit_for_bit():
    """The checksums are those of the two arrays that `sklearn.datasets.load_digits(return_X_y=True)` returns."""
    pixels, labels = read_digits()
    assert (pixels.dtype, pixels.shape, labels.dtype) == (np.float64, (1797, 64), np.int64)
    assert sha256(pixels.tobytes()) == "20def7f70a702f0af9732fbba4375e147a7d54fe70d8c45569b8e7c1c7010c10"
    assert sha256(labels.tobytes()) == "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"


def test_every_fifth_digit_is_a_test_sample():
    pixels, labels = read_digits()
    data = Digits(standardize=False).load("float64")
    test = np.arange(1797) % 5 == 4
    assert np.array_equal(data.x_train * 16, pixels[~test])
    assert np.array_equal(data.x_test * 16, pixels[test])
    assert np.array_equal(data.y_train, labels[~test])
    assert np.array_equal(data.y_test, labels[test])


def test_the_digits_of_earlier_versions_have_the_same_bits():
    """As they were when scikit-learn supplied the file: a run of an earlier version is still the same run."""
    data = Digits().load()
    assert data.sha256 == {"digits": "f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443"}
    assert sha256(data.x_train.tobytes()) == "adfdf152b58be9d3ae490f7ba9d93e2e38bf4fd8a2ebcc2d2bdbb50fa02e11db"
    assert sha256(data.x_test.tobytes()) == "13d1ec39b1031e2b4a8e6136e37e22703da8c457872be4a952059b41b76c0834"


def test_given_moments_scale():
    raw = Digits(standardize=False).load("float64")
    scaled = Digits(standardize={"mean": 0.5, "std": 2.0}).load("float64")
    np.testing.assert_allclose(scaled.x_train, (raw.x_train - 0.5) / 2, atol=1e-15)
    np.testing.assert_allclose(scaled.x_test, (raw.x_test - 0.5) / 2, atol=1e-15)


def test_moments_must_be_possible():
    for std in (0.0, -1.0, float("nan")):
        with pytest.raises(ValidationError):
            Digits(standardize={"mean": 0.0, "std": std})


def test_a_table_without_a_kind_is_digits_and_a_data_set_will_do():
    data = Dataset(**arrays())
    assert TypeAdapter(AnyData).validate_python({}) == Digits()
    assert TypeAdapter(AnyData).validate_python(data) is data


# npz


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_npz_is_used_as_it_is(save: Save, precision: str):
    data = NpzFile(path=save()).load(precision)
    good = arrays()
    assert data.x_train.dtype == precision
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    for name, array in good.items():
        assert np.array_equal(getattr(data, name), array.astype(getattr(data, name).dtype))
    assert (data.features, data.classes, data.name) == (3, 3, "mine")
    assert set(data.sha256) == {"mine.npz"}


def test_npz_images_are_flattened_row_by_row(save: Save):
    images = np.arange(6 * 4 * 5).reshape(6, 4, 5).astype(np.uint8)
    data = NpzFile(path=save(x_train=images, x_test=images[:4])).load()
    assert data.shape == (4, 5)
    assert np.array_equal(data.x_train, images.reshape(6, 20))
    assert np.array_equal(data.x_test, images[:4].reshape(4, 20))


def test_npz_whole_floats_are_labels_and_the_test_set_counts_for_classes(save: Save):
    data = NpzFile(path=save(y_train=np.array([0.0, 1, 2, 0, 1, 2]), y_test=np.array([0, 1, 2, 6]))).load()
    assert data.y_train.dtype == np.int64
    assert data.classes == 7


def test_npz_bytes_stay_bytes_and_are_scaled_when_they_are_looked_at(save: Save):
    images = np.arange(6 * 20).reshape(6, 4, 5).astype(np.uint8)
    path = save(x_train=images, x_test=images[:4])
    data = NpzFile(path=path).load("float64")
    assert data.x_train.dtype == np.uint8
    assert np.array_equal(data.inputs(data.x_train), images.reshape(6, 20))
    scaled = NpzFile(path=path, standardize=True).load("float64")
    assert scaled.x_train.dtype == np.uint8
    flat = images.reshape(6, 20)
    np.testing.assert_allclose(scaled.inputs(scaled.x_train), (flat - flat.mean()) / flat.std(), atol=1e-12)
    np.testing.assert_allclose(scaled.inputs(scaled.x_test), (flat[:4] - flat.mean()) / flat.std(), atol=1e-12)


def test_npz_may_say_who_wrote_what(save: Save):
    assert NpzFile(path=save()).load().groups is None
    for name in ("groups", "writers"):  # its name now, and before
        data = NpzFile(path=save(**{name: np.array([4.0, 4, 0, 1, 1, 0])})).load()
        assert data.groups.tolist() == [4, 4, 0, 1, 1, 0]
        assert data.groups.dtype == np.int64


def test_npz_standardised_when_asked(save: Save):
    data = NpzFile(path=save(), standardize=True).load("float64")
    assert data.x_train.mean() == pytest.approx(0, abs=1e-12)
    assert data.x_train.std() == pytest.approx(1)
    constant = refused(save(x_train=np.ones((6, 3))), standardize=True)
    assert constant.field == "standardize"


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_npz_without_an_array(save: Save, name: str):
    error = refused(save(**{name: None}))
    assert error.field == "path"
    assert f"without {name}" in str(error)


@pytest.mark.parametrize(
    ("field", "array", "what"),
    [
        ("x_train", np.full((6, 3), np.nan), "NaN"),
        ("x_test", np.where(np.arange(12).reshape(4, 3) == 7, np.inf, 0.0), "sample 2"),
        ("x_train", np.array([["a"] * 3] * 6), "<U1"),
        ("x_train", np.zeros((6, 3), complex), "complex"),
        ("x_train", np.zeros(6), "(6,)"),
        ("x_train", np.zeros((6, 0)), "(6, 0)"),
        ("x_test", np.zeros((4, 5)), "(5,)"),
        ("x_test", np.zeros((4, 3, 1)), "(3, 1)"),
        ("y_train", np.array([0, 1, -1, 0, 1, 2]), "-1"),
        ("y_test", np.array([0, 1, 0.5, 1]), "0.5 for sample 2"),
        ("y_test", np.array([0, 1, np.nan, 1]), "nan for sample 2"),
        ("y_train", np.array(list("abcabc")), "<U1"),
        ("y_train", np.zeros(5, int), "(5,)"),
        ("y_test", np.zeros((4, 1), int), "(4, 1)"),
        ("y_test", np.int64(3), "()"),
        ("groups", np.array([0, 1, 2]), "(3,)"),
        ("groups", np.array([0, 1, 2, 0, -1, 2]), "-1 for sample 4"),
        ("groups", np.array(list("abcabc")), "<U1"),
    ],
    ids=str,
)
def test_npz_refusals_name_the_array(save: Save, field: str, array: object, what: str):
    error = refused(save(**{field: array}))
    assert error.field == field
    assert what in str(error)


def test_npz_labels_too_large_to_count_do_not_turn_negative(save: Save):
    error = refused(save(y_train=np.full(6, 2**64 - 1, dtype=np.uint64)))
    assert error.field == "y_train"


def test_npz_numbers_that_the_precision_cannot_hold_are_refused(save: Save):
    path = save(x_train=np.full((6, 3), 1e300))
    assert np.isfinite(NpzFile(path=path).load("float64").x_train).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert refused(path).field == "x_train"


class Trap:
    """What a malicious file would run when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_npz_never_unpickles(save: Save, tmp_path: Path):
    sprung = tmp_path / "sprung"
    path = save(x_train=np.array([[Trap(sprung)] * 3] * 6, dtype=object))
    assert refused(path).field == "path"
    assert not sprung.exists()
    np.load(path, allow_pickle=True)["x_train"]
    assert sprung.exists()  # the trap is a real one


def test_npz_missing_or_another_kind_of_file(tmp_path: Path):
    path = tmp_path / "gone.npz"
    assert str(path) in str(refused(path))
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert refused(tmp_path / "one.npy").field == "path"
    (tmp_path / "text.npz").write_text("x_train = 3\n")
    assert refused(tmp_path / "text.npz").field == "path"


def packed(compressed: bool) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays())
    return buffer.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_cut_off_anywhere_is_refused(tmp_path: Path, compressed: bool):
    whole, path = packed(compressed), tmp_path / "cut.npz"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert str(path) in str(refused(path))


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_with_any_byte_altered_loads_or_is_refused(tmp_path: Path, compressed: bool):
    whole, path = packed(compressed), tmp_path / "altered.npz"
    escaped: dict[str, int] = {}
    refusals = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                NpzFile(path=path).load()
        except InputError:
            refusals += 1
        except Exception as error:  # anything else would be a traceback to the user
            escaped.setdefault(f"{type(error).__name__}: {error}", place)
    assert not escaped
    assert refusals > len(whole) / 3


# In memory


def test_a_data_set_in_memory_is_checked_when_it_is_loaded():
    data = Dataset(**arrays()).load("float64")
    assert np.array_equal(data.x_train, arrays()["x_train"])
    with pytest.raises(InputError, match=r"^y_test: "):
        Dataset(**arrays(y_test=np.zeros(9, int))).load()


def test_classes_with_names_are_classes_whether_they_occur_or_not():
    assert Dataset(**arrays(), class_names=("a", "b", "c", "d")).classes == 4
    some = Dataset(**arrays(), class_names=("a", "b"))
    assert (some.classes, some.label_names) == (3, ("a", "b", "2"))


# Standardised per feature


def per_feature(x_train: np.ndarray, x_test: np.ndarray, precision: str = "float64") -> Dataset:
    good = {"y_train": np.arange(len(x_train)) % 2, "y_test": np.arange(len(x_test)) % 2}
    return Dataset(x_train=x_train, x_test=x_test, **good).prepared("features", precision, unit=255)


@pytest.mark.parametrize("kind", ["float64", "uint8"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_each_feature_has_mean_0_and_deviation_1_over_the_training_set(kind: str, precision: str):
    rng = np.random.default_rng(0)
    x = (rng.random((5000, 2, 3)) * [1, 20, 250]).astype(kind)
    data = per_feature(x[:4500], x[4500:], precision)
    assert data.x_train.dtype == data.x_test.dtype == precision
    assert (data.scale, data.shift, data.shape) == (1.0, 0.0, (2, 3))
    assert data.load(precision) is data
    varying = x[:4500].reshape(4500, 6).std(axis=0) > 0
    tolerance = 1e-5 if precision == "float32" else 1e-12
    np.testing.assert_allclose(data.x_train.mean(axis=0, dtype=np.float64), 0, atol=tolerance)
    np.testing.assert_allclose(data.x_train.std(axis=0, dtype=np.float64), varying, atol=tolerance)
    flat = x.reshape(5000, 6).astype(np.float64)
    mean, std = flat[:4500].mean(axis=0), np.where(varying, flat[:4500].std(axis=0), 1)
    np.testing.assert_allclose(data.x_test, (flat[4500:] - mean) / std, atol=tolerance)


def test_a_feature_that_is_constant_in_training_is_only_centred():
    x = np.column_stack([np.full(9, 0.1), np.arange(9.0)])  # the computed deviation of nine 0.1 may be above 0
    data = per_feature(x, x + np.array([1.0, 0.0]))
    assert (data.x_train[:, 0] == 0).all()
    np.testing.assert_allclose(data.x_test[:, 0], 1, atol=1e-12)
    with pytest.raises(InputError, match=r"^standardize: got a constant x_train"):
        per_feature(np.ones((4, 2)), np.ones((2, 2)))


@pytest.mark.parametrize("standardize", [True, "features", "minmax"])
def test_numbers_whose_squares_overflow_are_not_scaled(standardize: bool | str):
    """Their deviation would be infinite, and all inputs 0."""
    data = Dataset(**arrays(x_train=np.where(np.eye(6, 3, dtype=bool), -1e308, 1.0)))
    with pytest.raises(InputError, match=r"^x_train: got values up to 1e\+308, too large to be scaled"):
        data.prepared(standardize, "float64")


@pytest.mark.parametrize("standardize", [True, "features"])
def test_test_inputs_that_scaling_makes_infinite_are_refused(standardize: bool | str):
    rng = np.random.default_rng(0)
    data = Dataset(**arrays(x_train=rng.random((6, 3)) * 1e-30, x_test=np.full((4, 3), 1e30)))
    with pytest.raises(InputError, match=r"^x_test: got values too large for float32 once they are scaled"):
        data.prepared(standardize, "float32")


def test_every_data_set_takes_the_choice(save: Save):
    assert NpzFile(path=save(), standardize="features").load("float64").x_train.std(axis=0) == pytest.approx(1)
    digits = Digits(standardize="features").load("float64")
    deviations = digits.x_train.std(axis=0)
    assert ((abs(deviations - 1) < 1e-9) | (deviations == 0)).all()
    with pytest.raises(ValidationError):
        Digits(standardize="feature")


# Validation


def test_a_share_of_the_training_samples_of_each_label_is_set_aside():
    whole = Digits().load()
    data = whole.with_validation(0.1)
    for label in range(10):
        before = (whole.y_train == label).sum()
        assert (data.y_test == label).sum() == np.floor(before / 10 + 0.5)
        assert (data.y_train == label).sum() + (data.y_test == label).sum() == before

    def rows(x: np.ndarray, y: np.ndarray) -> list[bytes]:
        return [pixels.tobytes() + bytes([label]) for pixels, label in zip(x, y, strict=True)]

    kept, aside, all_of_them = (
        rows(data.x_train, data.y_train),
        rows(data.x_test, data.y_test),
        rows(whole.x_train, whole.y_train),
    )
    assert sorted(kept + aside) == sorted(all_of_them)
    assert kept == [row for row in all_of_them if row in set(kept)]  # in their order
    assert (data.classes, data.shape, data.sha256, data.scale) == (10, (8, 8), whole.sha256, whole.scale)
    assert data.load() is data


def test_the_validation_samples_are_always_the_same_and_no_regular_pattern():
    whole = Digits().load()
    first, again = whole.with_validation(0.25), whole.with_validation(0.25)
    assert np.array_equal(first.x_test, again.x_test)
    assert sha256(first.y_test.tobytes() + first.x_test.tobytes()) == VALIDATION_SHA256
    everything = {row.tobytes(): number for number, row in enumerate(whole.x_train)}
    assert len(set(np.diff([everything[row.tobytes()] for row in first.x_test]))) > 5


def test_validation_keeps_groups_and_never_takes_the_last_sample_of_a_label():
    labels = np.array([0, 0, 0, 0, 1, 2, 2])
    data = Dataset(np.arange(7.0)[:, None], labels, np.zeros((1, 1)), np.array([5]), groups=np.arange(7)).load()
    split = data.with_validation(0.9)
    assert split.y_train.tolist() == [0, 1, 2]
    assert split.y_test.tolist() == [0, 0, 0, 2]
    assert split.groups.tolist() == split.x_train[:, 0].tolist()
    assert split.classes == data.classes == 6


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, float("nan"), 1e-9])
def test_a_share_without_samples_is_refused(share: float):
    with pytest.raises(InputError) as caught:
        Digits().load().with_validation(share)
    assert caught.value.field == "validation"


# IDX


def test_idx_files_are_read_big_endian_and_must_fit():
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])
    assert parse_idx(content).tolist() == [[1, 2, 3], [4, 5, 6]]
    for bad in (
        content[:-1],
        content + b"\0",
        b"\1" + content[1:],
        content[:2] + b"\x0d" + content[3:],
        b"",
        b"\0\0\x08\x03",
    ):
        with pytest.raises(InputError, match="IDX"):
            parse_idx(bad)


def test_lists_are_arrays():
    whole = Dataset(**arrays())
    lists = Dataset(**{name: array.tolist() for name, array in arrays().items()})
    for name in arrays():
        assert np.array_equal(getattr(lists, name), getattr(whole, name))
    with pytest.raises(InputError, match="x_train: got a list"):
        Dataset([[1.0], [1.0, 2.0]], [0, 1], [[1.0]], [0])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"y_train": np.array([0, -5, 1, 2])}, "y_train"),
        ({"y_train": np.arange(9)}, "y_train"),
        ({"y_test": np.array([1])}, "y_test"),
        ({"x_test": np.zeros((2, 5), np.float32)}, "x_test"),
        ({"x_test": np.zeros((0, 3), np.float32), "y_test": np.zeros(0, np.int64)}, "x_test"),
        ({"x_train": np.full((4, 3), np.nan, np.float32)}, "x_train"),
    ],
)
def test_data_that_look_prepared_are_checked_as_well(changes, field):
    """Compiled loops check no index."""
    x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 0])
    good = {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2], "shape": (3,)}
    whole = Dataset(**good)
    assert whole.load() is whole
    with pytest.raises(InputError, match=rf"^{field}: got"):
        Dataset(**good | changes).load()
