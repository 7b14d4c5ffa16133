"""A data set that loads is finite, flat and labelled from 0; anything else is refused by name."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.base.inputs import sha256
from efhc.learning.data import Dataset, Digits, NpzFile
from efhc.learning.data.images import parse_idx

Save = Callable[..., Path]
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


@pytest.mark.parametrize(
    ("field", "array", "what"),
    [
        ("x_train", np.full((6, 3), np.nan), "NaN"),
        ("x_test", np.where(np.arange(12).reshape(4, 3) == 7, np.inf, 0.0), "sample 2"),
        ("x_train", np.array([["a"] * 3] * 6), "<U1"),
        ("x_train", np.zeros(6), "(6,)"),
        ("x_train", np.zeros((6, 0)), "(6, 0)"),
        ("x_test", np.zeros((4, 5)), "(5,)"),
        ("y_train", np.array([0, 1, -1, 0, 1, 2]), "-1"),
        ("y_test", np.array([0, 1, 0.5, 1]), "0.5 for sample 2"),
        ("y_train", np.array(list("abcabc")), "<U1"),
        ("y_train", np.zeros(5, int), "(5,)"),
        ("y_train", np.full(6, 2**64 - 1, dtype=np.uint64), "18446744073709551615 for sample 0"),
        ("groups", np.array([0, 1, 2]), "(3,)"),
        ("groups", np.array([0, 1, 2, 0, -1, 2]), "-1 for sample 4"),
    ],
    ids=str,
)
def test_npz_refusals_name_the_array(save: Save, field: str, array: object, what: str):
    error = refused(save(**{field: array}))
    assert error.field == field
    assert what in str(error)


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


def test_npz_without_an_array_is_refused(save: Save):
    assert "without y_test" in str(refused(save(y_test=None)))


def packed(compressed: bool) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays())
    return buffer.getvalue()


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
    with pytest.raises(InputError, match=r"^standardize: cannot use a constant x_train"):
        per_feature(np.ones((4, 2)), np.ones((2, 2)))


@pytest.mark.parametrize("standardize", [True, "features", "minmax"])
def test_numbers_whose_squares_overflow_are_not_scaled(standardize: bool | str):
    """Their deviation would be infinite, and all inputs 0."""
    data = Dataset(**arrays(x_train=np.where(np.eye(6, 3, dtype=bool), -1e308, 1.0)))
    with pytest.raises(InputError, match=r"^x_train: cannot use values up to 1e\+308, too large to be scaled"):
        data.prepared(standardize, "float64")


@pytest.mark.parametrize("standardize", [True, "features"])
def test_test_inputs_that_scaling_makes_infinite_are_refused(standardize: bool | str):
    rng = np.random.default_rng(0)
    data = Dataset(**arrays(x_train=rng.random((6, 3)) * 1e-30, x_test=np.full((4, 3), 1e30)))
    with pytest.raises(InputError, match=r"^x_test: cannot use values too large for float32 once they are scaled"):
        data.prepared(standardize, "float32")


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
    with pytest.raises(InputError, match=rf"^{field}: cannot use"):
        Dataset(**good | changes).load()
