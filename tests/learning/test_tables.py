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
        (["10", "9", "x", "x", "9"] * 2, ("9", "10", "x")),
        (["01", "1"] * 5, ("01", "1")),  # texts stay as they are
        (["item 10", "item 9"] * 5, ("item 9", "item 10")),
        (["2", "-1", "10", "+1", "2"] * 2, ("-1", "+1", "2", "10")),
        (["1.0", "1.x"] * 5, ("1.0", "1.x")),
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


@pytest.mark.parametrize(
    ("labels", "held", "classes"),
    [
        ([1, 2] * 3, [1.0, 2.0, 1.0], ("1", "2")),  # as other programs write whole numbers beside missing ones
        (["01", "1"] * 3, ["1", "01", "1"], ("01", "1")),
        ([1, 2] * 3, ["1", "2", "1"], ("1", "2")),
    ],
)
def test_labels_of_both_files_are_compared_as_they_are_written(
    load: Load, labels: list[Any], held: list[Any], classes: tuple[str, ...]
):
    test = PETS.tail(3).with_columns(animal=pl.Series(held))
    data = load(PETS.head(6).with_columns(animal=pl.Series(labels)), test)
    assert data.class_names == classes
    assert [float(classes[y]) for y in data.y_test] == [float(one) for one in held]


def test_another_way_to_write_a_label_is_another_label(load: Load):
    test = PETS.tail(3).with_columns(animal=pl.Series(["01", "2", "2"]))
    error = refused(lambda: load(PETS.head(6).with_columns(animal=pl.Series([1, 2] * 3)), test))
    assert error.field == "label"
    assert "'01'" in str(error)


def test_groups_are_named_by_texts(load: Load):
    data = load(PETS.with_columns(vet=pl.Series(["01", "1"] * 5)), group="vet")
    assert set(data.groups.tolist()) == {0, 1}


# Missing values and categories


HOUSES = pl.DataFrame(
    {
        "area": [10.0, None, 30.0, 80.0, 30.0, None, 70.0],
        "roof": ["tin", None, "tile", "reed", "tile", "?", "slate"],
        "rooms": [2, 3, 4, 5, 6, 7, 8],
        "part": ["train"] * 5 + ["test"] * 2,
        "sold": ["no", "yes"] * 3 + ["no"],
    }
)
SPLIT = {"label": "sold", "split": "part", "standardize": False}


@pytest.mark.parametrize(
    ("missing", "area", "roof"),
    [("mean", 37.5, "tile"), ("median", 30.0, "tile"), ("most-frequent", 30.0, "tile")],
)
def test_missing_values_are_filled_by_the_training_samples_and_levels_are_theirs(
    load: Load, missing: str, area: float, roof: str
):
    data = load(HOUSES, missing=missing, categories="one-hot", **SPLIT)
    assert data.feature_names == ("area", "roof=reed", "roof=tile", "roof=tin", "rooms")
    levels = ["reed", "tile", "tin"]
    roofs = [["tin", roof, "tile", "reed", "tile"], [roof, "slate"]]
    areas = [[10.0, area, 30.0, 80.0, 30.0], [area, 70.0]]
    for x, these, sizes, rooms in zip(
        (data.x_train, data.x_test), roofs, areas, ([2, 3, 4, 5, 6], [7, 8]), strict=True
    ):
        expected = [
            [size, *(float(one == level) for level in levels), room]
            for size, one, room in zip(sizes, these, rooms, strict=True)
        ]
        assert x.tolist() == expected
    found = {column.name: column for column in data.columns}
    assert [*found["area"]] == ["area", (), 1, 1, f"{area:g}", 0]
    assert [*found["roof"]] == ["roof", tuple(levels), 1, 1, roof, 1]  # a roof of slate has no feature
    assert [*found["rooms"]] == ["rooms", (), 0, 0, "", 0]


def test_samples_with_missing_values_may_be_dropped_with_all_that_belongs_to_them(load: Load):
    data = load(
        HOUSES.with_columns(town=pl.Series(list("abcdefg"))),
        missing="drop",
        group="town",
        **SPLIT,
    )
    assert data.x_train.tolist() == [[10, 2], [30, 4], [80, 5], [30, 6]]
    assert data.x_test.tolist() == [[70, 8]]
    assert data.class_names == ("no", "yes")
    assert data.y_train.tolist() == [0, 0, 1, 0]
    assert data.groups.tolist() == [0, 1, 2, 3]
    assert data.test_groups.tolist() == [4]
    assert data.dropped == (1, 1)
    assert data.columns[0][2:5] == (1, 1, "dropped")


def test_dropped_samples_leave_the_shares_of_the_labels(load: Load):
    table = pl.DataFrame({"x": [None if n % 4 == 0 else float(n) for n in range(80)], "y": ["a", "b"] * 40})
    data = load(table, label="y", missing="drop", test_share=0.5)
    assert np.bincount(data.y_train).tolist() == [10, 20]
    assert np.bincount(data.y_test).tolist() == [10, 20]


def test_test_samples_change_nothing_that_models_are_trained_on(load: Load):
    filling = {"label": "sold", "missing": "mean", "categories": "one-hot", "features": ["area", "roof", "rooms"]}
    train, held = HOUSES.head(5), HOUSES.tail(2)
    other = held.with_columns(area=pl.Series([1e6, -1e6]), roof=pl.Series(["gold", "gold"]))
    data, changed = (load(train, test, **filling) for test in (held, other))
    assert np.array_equal(data.x_train, changed.x_train)
    assert data.feature_names == changed.feature_names
    assert changed.columns[1].unseen == 2


def test_named_categories_may_be_numbers_and_leave_other_texts_alone(load: Load):
    data = load(HOUSES, missing="mean", categories=["rooms"], **SPLIT)
    assert data.feature_names == ("area", "rooms=2", "rooms=3", "rooms=4", "rooms=5", "rooms=6")
    assert data.unused == ("roof",)
    assert data.columns[1].unseen == 2


@pytest.mark.parametrize("text", ["", " ", "NA", "na", "NaN", "nan", "null", "NULL", "?", " ? "])
def test_texts_that_mean_a_missing_value(csv: Callable[..., CsvFile], text: str):
    content = GOOD + f"1,{text},yes\n"
    assert "a missing value in line 12, column b" in str(refused(csv(content).load))
    data = csv(content, missing="mean").load("float64")
    assert data.columns[1].missing + data.columns[1].missing_in_test == 1


@pytest.mark.parametrize(
    ("change", "policy", "field", "message"),
    [
        ({}, {}, "path", "a missing value in"),
        ({}, {"features": ["rooms", "roof"], "missing": "mean"}, "path", "'tin', which is no finite number"),
        ({"area": [None] * 5 + [1.0, 2.0]}, {"missing": "median"}, "features", "'area', which has no value"),
        ({"roof": [None] * 7}, {"missing": "mean", "categories": ["roof"]}, "features", "'roof', which has no value"),
        ({"area": [float("inf")] * 7}, {"missing": "mean"}, "path", "column area"),
        ({}, {"categories": ["roofs"], "missing": "mean"}, "categories", "did you mean 'roof'?"),
        ({"area": [float("nan")] * 7}, {"missing": "drop"}, "missing", "in every row of"),
        ({"area": [None] * 5 + [1.0, 2.0]}, {"missing": "drop"}, "label", "without a training sample that"),
        ({}, {"features": ["roof"], "missing": "mean"}, "path", 'categories = "one-hot"'),
        ({"roof=tin": [1.0] * 7}, {"missing": "mean", "categories": "one-hot"}, "features", "two features named"),
    ],
)
def test_what_cannot_be_filled_or_encoded(
    load: Load, change: dict[str, Any], policy: dict[str, Any], field: str, message: str
):
    error = refused(
        lambda: load(HOUSES.with_columns(**{name: pl.Series(new) for name, new in change.items()}), **SPLIT, **policy)
    )
    assert error.field == field
    assert message in str(error)


def test_a_column_of_too_many_levels_is_named(load: Load):
    table = pl.DataFrame({"x": [1.0] * 1500, "name": [f"n{n}" for n in range(1500)], "y": ["a", "b"] * 750})
    error = refused(lambda: load(table, label="y", categories="one-hot"))
    assert error.field == "categories"
    assert "'name'" in str(error)


def test_numbers_among_texts_are_no_category_by_themselves(csv: Callable[..., CsvFile]):
    content = GOOD + "1,1o,yes\n"
    assert refused(csv(content, categories="one-hot").load).field == "features"
    assert "b=1o" in (made := csv(content, categories=["b"]).load()).feature_names or made.columns[1].unseen


@pytest.mark.parametrize(
    "policy", [{"categories": ["sold"]}, {"categories": []}, {"categories": ["roof"], "features": ["area"]}]
)
def test_categories_that_contradict_other_settings(policy: dict[str, Any]):
    with pytest.raises(ValidationError):
        CsvFile(path="mine.csv", label="sold", **policy)


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
    assert ("missing" in str(error)) == (bad is None or np.isnan(bad))


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
        ("1,NA,yes", "a missing value in line 12, column b"),
        ("1,-1e308,yes", "'-1e308', which is too large to compute with, in line 12, column b"),
        ("1,1e999,yes", "'1e999', which is no finite number, in line 12, column b"),
        ("1,2,yes,4", "4 values in line 12, 3 in the header"),
        ('1,2,"two\nlines"\n\n1,nan,yes', "a missing value in line 15, column b"),
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
    assert "a missing value in row 1" in str(refused(ParquetFile(path=path, label="animal").load))
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
    path.write_text((whole := path.read_text()).replace(f"{columns['price'][2]}", "inf"))
    with pytest.raises(InputError, match=r"inf.* line 4, .* every row of the label"):
        CsvFile(path=path, label="price", label_kind="number").load()
    text = whole.replace(f"{columns['price'][2]}", "dear")
    path.write_text(text)
    with pytest.raises(InputError, match=r"'dear', .* line 4, column price"):
        CsvFile(path=path, label="price", label_kind="number").load()
