"""A CSV or Parquet file becomes samples by the same rules; what cannot be used is refused by line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from efhc.base.errors import InputError
from efhc.base.inputs import sha256
from efhc.learning.data import CsvFile, Dataset, ParquetFile
from efhc.learning.data.images import read_digits

KINDS = {"csv": CsvFile, "parquet": ParquetFile}
Load = Callable[..., Dataset]
PETS = pl.DataFrame(
    {
        "weight": [4.0, 5.5, 30.0, 25.0, 3.5, 28.0, 4.5, 31.0, 5.0, 27.0],
        "legs": [4, 4, 4, 4, 3, 4, 4, 4, 4, 4],
        "tame": [True, False] * 5,
        "name": ["Tom", "Kit", "Rex", "Ace", "Lua", "Bo", "Mia", "Max", "Zoe", "Sam"],
        "vet": ["b", "a", "b", "c", "a", "b", "c", "a", "b", "c"],
        "animal": ["cat", "cat", "dog", "dog", "cat", "dog", "cat", "dog", "cat", "dog"],
    }
)


def write(table: pl.DataFrame, path: Path) -> Path:
    getattr(table, f"write_{path.suffix[1:]}")(path)
    return path


@pytest.fixture(params=KINDS)
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """Loads a table from a file of each format; `test` is a second table."""

    def do(table: pl.DataFrame = PETS, test: pl.DataFrame | None = None, **policy: Any) -> Dataset:
        given: dict[str, Any] = {"path": write(table, tmp_path / f"mine.{request.param}"), "label": "animal"}
        if test is not None:
            given["test_path"] = write(test, tmp_path / f"held.{request.param}")
        return KINDS[request.param](**given | policy).load("float64")

    return do


def refused(call: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


# What becomes of a table


def test_columns_of_numbers_are_features_and_sorted_labels_are_classes(load: Load, tmp_path: Path):
    data = load(test_share=0.4, standardize=False)
    assert data.feature_names == ("weight", "legs", "tame")
    assert data.unused == ("name", "vet")
    assert data.class_names == ("cat", "dog")
    assert np.bincount(data.y_train).tolist() == [3, 3]
    assert np.bincount(data.y_test).tolist() == [2, 2]
    rows = {(x[0], x[1], x[2], data.class_names[y]) for x, y in _samples(data)}
    assert rows == {(one["weight"], one["legs"], float(one["tame"]), one["animal"]) for one in PETS.to_dicts()}
    assert data.name == "mine"
    (name, checksum), *others = data.sha256.items()
    assert checksum == sha256((tmp_path / name).read_bytes())
    assert not others


def _samples(data: Dataset) -> list[tuple[np.ndarray, int]]:
    return [*zip(data.x_train, data.y_train, strict=True), *zip(data.x_test, data.y_test, strict=True)]


def test_csv_and_parquet_of_one_table_are_the_same_samples(tmp_path: Path):
    policies = [KINDS[kind](path=write(PETS, tmp_path / f"pets.{kind}"), label="animal", group="vet") for kind in KINDS]
    csv, parquet = (policy.load() for policy in policies)
    for name in ("x_train", "y_train", "x_test", "y_test", "groups"):
        assert np.array_equal(getattr(csv, name), getattr(parquet, name)), name
    assert csv.label_names == parquet.label_names


def test_digits_in_a_table_are_the_digits(load: Load):
    pixels, labels = read_digits()
    table = pl.DataFrame(pixels, schema=[f"p{n}" for n in range(64)]).with_columns(
        digit=pl.Series(labels), part=pl.Series(np.where(np.arange(len(labels)) % 5 == 4, "test", "train"))
    )
    data = load(table, label="digit", split="part", shape=[8, 8], standardize=False)
    test = np.arange(len(labels)) % 5 == 4
    assert np.array_equal(data.x_train, pixels[~test])
    assert np.array_equal(data.y_test, labels[test])
    assert data.shape == (8, 8)
    assert data.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([9, 10, 9, 10, 2, 9, 10, 2, 2, 2], ("2", "9", "10")),  # by number, not as texts
        ([1.0, 0.0] * 5, ("0", "1")),
        ([-1, 1] * 5, ("-1", "1")),
        (["b", "B"] * 5, ("B", "b")),
        (["10", "9", "x", "x", "9"] * 2, ("10", "9", "x")),
        ([2**60, 2**60 + 1] * 5, (str(2**60), str(2**60 + 1))),  # no detour by numbers that cannot hold them
    ],
)
def test_labels_are_names_or_whole_numbers(load: Load, labels: list[Any], classes: tuple[str, ...]):
    data = load(PETS.with_columns(animal=pl.Series(labels)), features=["weight"], standardize=False)
    assert data.class_names == classes
    expected = dict(zip(PETS["weight"], labels, strict=True))
    is_number = isinstance(labels[0], float)
    assert all(
        data.class_names[y] == str(int(expected[x[0]]) if is_number else expected[x[0]]) for x, y in _samples(data)
    )


def test_scaling_uses_the_training_samples_only(load: Load):
    held = PETS.tail(3).with_columns(weight=pl.Series([0.5, 99.0, 7.0]))  # beyond all training samples
    raw = load(PETS, held, standardize=False)
    by_moments, by_range = load(PETS, held), load(PETS, held, standardize="minmax")
    constant = (raw.x_train == raw.x_train[0]).all(axis=0)
    mean, std = raw.x_train.mean(axis=0), np.where(constant, 1, raw.x_train.std(axis=0))
    np.testing.assert_allclose(by_moments.x_test, (raw.x_test - mean) / std)
    np.testing.assert_allclose(by_moments.x_train, (raw.x_train - mean) / std)
    low, width = raw.x_train.min(axis=0), np.where(constant, 1, np.ptp(raw.x_train, axis=0))
    np.testing.assert_allclose(by_range.x_test, (raw.x_test - low) / width)
    assert by_range.x_train.min() == 0
    assert by_range.x_train.max() == 1
    assert by_range.x_test.max() > 1


def test_scaling_comes_before_rounding_to_the_precision_of_models(tmp_path: Path):
    """In float32, seconds since 1970 are 128 s apart."""
    seconds = pl.DataFrame({"t": 1.7e9 + np.arange(100), "y": [0, 1] * 50})
    data = CsvFile(path=write(seconds, tmp_path / "t.csv"), label="y", standardize="minmax").load("float32")
    assert data.x_train.dtype == np.float32
    assert len(np.unique(data.x_train)) == len(data.x_train)


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=5), share=st.floats(0.05, 0.95), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_the_share_is_of_every_label_the_same_each_time_and_never_all(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], share: float, seed: int
):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    table = pl.DataFrame({"x": np.arange(len(labels)), "y": labels})
    policy = ParquetFile(
        path=write(table, tmp_path_factory.mktemp("share") / "t.parquet"),
        label="y",
        test_share=share,
        standardize=False,
    )
    expected = [min(int(share * count + 0.5), count - 1) for count in counts]
    if not sum(expected):
        assert refused(policy.load).field == "test_share"
        return
    data, again = policy.load(), policy.load()
    assert np.bincount(data.y_test, minlength=len(counts)).tolist() == expected
    assert np.array_equal(data.x_test, again.x_test)
    rows = np.sort(np.concatenate([data.x_train, data.x_test])[:, 0])
    assert np.array_equal(rows, np.arange(len(labels)))


def test_a_second_file_has_the_test_samples(load: Load, tmp_path: Path):
    held = PETS.tail(4).select("animal", "tame", "weight", "legs")  # columns in another order, and fewer of them
    data = load(PETS.head(6), held, standardize=False)
    assert data.x_test[:, 0].tolist() == PETS["weight"][6:].to_list()
    assert data.y_test.tolist() == [0, 1, 0, 1]
    assert len(data.y_train) == 6
    assert {Path(name).stem for name in data.sha256} == {"mine", "held"}


# Refusals of both formats


def test_a_label_of_the_test_samples_only(load: Load):
    other = PETS.tail(3).with_columns(animal=pl.Series(["cat", "emu", "dog"]))
    error = refused(lambda: load(PETS, other))
    assert error.field == "label"
    assert "'emu' in" in str(error)
    assert "held." in str(error)
    assert "cat, dog" in str(error)


@pytest.mark.parametrize(
    ("policy", "field", "message"),
    [
        ({"label": "anima"}, "label", "did you mean 'animal'?"),
        ({"features": ["weight", "height"]}, "features", "'height'"),
        ({"group": "clinic"}, "group", "one of weight, legs, tame, name, vet, animal"),
        ({"split": "part"}, "split", "'part'"),
        ({"split": "vet"}, "split", "'train' or 'test' in every row"),
        ({"features": ["weight", "name"]}, "path", "'Tom', which is no finite number, in"),
        ({"label": "weight"}, "label", "5.5"),
        ({"label": "name"}, "test_share", "at least one sample of some label"),
        ({"shape": [2, 2]}, "shape", "product is 3"),
    ],
)
def test_settings_that_do_not_fit_the_file(load: Load, policy: dict[str, Any], field: str, message: str):
    error = refused(lambda: load(**policy))
    assert error.field == field
    assert message in str(error)


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_what_is_no_number_is_named_by_row_and_column(load: Load, bad: float | None):
    weights = PETS["weight"].to_list()
    weights[6] = bad
    error = refused(lambda: load(PETS.with_columns(weight=pl.Series(weights))))
    assert error.field == "path"
    assert any(place in str(error) for place in ("in line 8, column weight", "in row 6, counted from 0, column weight"))
    assert ("missing" in str(error)) == (bad is None)


def test_tables_that_cannot_teach(load: Load):
    assert "'cat' in every training sample" in str(refused(lambda: load(PETS.filter(animal="cat"))))
    assert "without a row" in str(refused(lambda: load(PETS.clear())))
    assert "no column of numbers" in str(refused(lambda: load(PETS.select("name", "animal"))))
    missing = PETS.with_columns(animal=pl.Series([None, *PETS["animal"][1:]]))
    assert "a missing label in" in str(refused(lambda: load(missing)))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"split": "part", "test_share": 0.1}, "one of test_path, split and test_share"),
        ({"split": "part", "test_path": "held.csv"}, "one of test_path, split and test_share"),
        ({"features": ["animal"]}, "a column of its own"),
        ({"group": "animal"}, "a column of its own"),
        ({"features": ["weight", "weight"]}, "each column once"),
        ({"features": []}, "at least 1"),
        ({"test_share": 1.0}, "less than 1"),
        ({"separator": ";;"}, "Input should be"),
    ],
)
def test_settings_that_contradict_each_other(policy: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        CsvFile(path="mine.csv", label="animal", **policy)


# CSV


@pytest.fixture
def csv(tmp_path: Path) -> Callable[..., CsvFile]:
    def put(content: str | bytes, **policy: Any) -> CsvFile:
        (tmp_path / "mine.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return CsvFile(**{"path": tmp_path / "mine.csv", "label": "y", "standardize": False} | policy)

    return put


GOOD = "a,b,y\n" + "".join(f"{n},{n * n},{'no' if n % 2 else 'yes'}\n" for n in range(10))


def test_csv_as_programs_write_it(csv: Callable[..., CsvFile]):
    expected = csv(GOOD).load()
    written = [
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\r"),
        "\ufeff" + GOOD,
        GOOD.replace(",", ";"),
        GOOD.replace(",", " , ").replace(" , b , y", ",b,y"),
        GOOD.rstrip("\n"),
        GOOD + "\n\n",
        '"a","b","y"\n' + GOOD.partition("\n")[2].replace("yes", '"yes"'),
    ]
    for content in written:
        data = csv(content, separator=";" if ";" in content else ",").load()
        assert np.array_equal(data.x_train, expected.x_train), content
        assert np.array_equal(data.y_test, expected.y_test), content


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,,yes", "a missing value in line 12, column b"),
        ("1", "a missing label in line 12, column y"),
        ("1,2,", "a missing label in line 12, column y"),
        ('1,2," "', "a missing label in line 12, column y"),
        ("1,oops,yes", "'oops' among numbers in line 12, column b"),
        ("1,NA,yes", "'NA' among numbers in line 12, column b"),
        ("1,-1e308,yes", "'-1e308', which is too large to compute with, in line 12, column b"),
        ("1,1e999,yes", "'1e999', which is no finite number, in line 12, column b"),
        ("1,2,yes,4", "4 values in line 12, 3 in the header"),
        ('1,2,"two\nlines"\n\n1,nan,yes', "'nan', which is no finite number, in line 15, column b"),
    ],
)
def test_csv_mistakes_are_named_by_line(csv: Callable[..., CsvFile], line: str, message: str):
    assert message in str(refused(csv(GOOD + line + "\n").load))


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        ("", "path", "empty"),
        ("a,b,y\n", "path", "without a row"),
        ("a;b;y\n1;2;3\n", "separator", "';', which it has"),
        ("a,a,y\n1,2,3\n", "path", "two columns 'a'"),
        ("a,b,y\r1,2,3\r4,5,6\n", "path", "lines that all end alike"),
        (b"\xff\xfea\x00", "path", "not UTF-8"),
        (b"\x1f\x8b\x08\x00", "path", "not UTF-8"),
    ],
)
def test_csv_that_is_none(csv: Callable[..., CsvFile], content: str | bytes, field: str, message: str):
    error = refused(csv(content).load)
    assert error.field == field
    assert message in str(error)


def test_csv_column_of_numbers_and_texts_may_be_left_out_by_name(csv: Callable[..., CsvFile]):
    mixed = "zip,b,y\n" + "".join(f"{n}{'A' if n > 5 else ''},{n},{n % 2}\n" for n in range(10))
    assert "'6A' among numbers in line 8, column zip" in str(refused(csv(mixed).load))
    assert csv(mixed, features=["b"]).load().unused == ("zip",)


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_read(csv: Callable[..., CsvFile]):
    """Under two megabytes, which are 10^11 missing values."""
    wide = ",".join(f"c{n}" for n in range(100_000))
    assert "more than the memory of this machine" in str(refused(csv(wide + "\n" * 1_000_000).load))


# Parquet


def test_parquet_that_is_none(tmp_path: Path):
    whole = write(PETS, tmp_path / "whole.parquet").read_bytes()
    for content in (b"", b"a,b\n1,2\n", whole[:-9], b"PAR1" + bytes(40) + b"PAR1"):
        (tmp_path / "mine.parquet").write_bytes(content)
        error = refused(ParquetFile(path=tmp_path / "mine.parquet", label="animal").load)
        assert error.field == "path"
        assert "a whole Parquet file" in str(error)


def test_parquet_types(tmp_path: Path):
    """What the file says is a text stays one, and lists are neither labels nor features."""
    table = PETS.with_columns(
        zip=pl.Series([f"{n}" for n in range(10)]),
        cost=pl.col("weight").cast(pl.Decimal(10, 2)),
        animal=pl.col("animal").cast(pl.Categorical),
        parts=pl.Series([[1.0, 2.0]] * 10),
        raw=pl.Series([b"\xff"] * 10),
        grade=pl.Series([1.0, float("nan")] * 5),
        born=pl.Series(["2026-01-01", "2026-01-02"] * 5).str.to_date(),
    )
    path = write(table, tmp_path / "typed.parquet")
    assert "nan, which is no finite number, in row 1" in str(refused(ParquetFile(path=path, label="animal").load))
    write(table.drop("grade"), tmp_path / "good.parquet")
    data = ParquetFile(path=tmp_path / "good.parquet", label="animal").load()
    assert data.feature_names == ("weight", "legs", "tame", "cost")
    assert data.class_names == ("cat", "dog")
    assert ParquetFile(path=tmp_path / "good.parquet", label="born").load().class_names == ("2026-01-01", "2026-01-02")
    for label, message in (("parts", "List(Float64)"), ("raw", "Binary"), ("grade", "nan in row 1")):
        assert message in str(refused(ParquetFile(path=path, label=label, features=["weight"]).load))
    for feature in ("parts", "raw"):
        error = refused(ParquetFile(path=path, label="animal", features=[feature]).load)
        assert f"in row 0, counted from 0, column {feature}" in str(error)


def test_a_column_of_numbers_can_be_what_is_predicted(tmp_path: Path):
    rng = np.random.default_rng(0)
    columns = {"size": rng.normal(size=50), "price": rng.normal(size=50), "town": np.arange(50) % 5}
    path = tmp_path / "houses.csv"
    pl.DataFrame(columns).write_csv(path)
    data = CsvFile(path=path, label="price", label_kind="number", group="town", standardize=False).load("float64")
    assert (len(data.y_train), len(data.y_test)) == (40, 10)
    assert sorted([*data.y_train, *data.y_test]) == sorted(columns["price"])
    price_of = dict(zip(columns["size"], columns["price"], strict=True))
    assert [price_of[size] for size in data.x_train[:, 0]] == data.y_train.tolist()
    assert data.feature_names == ("size",)
    with pytest.raises(InputError, match="label_kind"):
        CsvFile(path=path, label="price").load()
    text = path.read_text().replace(f"{columns['price'][2]}", "dear")
    path.write_text(text)
    with pytest.raises(InputError, match=r"'dear', .* line 4, column price"):
        CsvFile(path=path, label="price", label_kind="number").load()
