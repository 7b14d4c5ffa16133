from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from problems import graphs

from efhc.core.graph import Graph
from efhc.drivers.record import METRICS, Record, list_columns
from efhc.drivers.steps import Steps
from efhc.learning.measures import CLASSIFICATION, Evaluation, Scores


def joined(pieces, table):
    return pl.concat(piece.tables[table] for piece in pieces)


@given(st.data(), st.integers(1, 6))
def test_pieces_are_the_whole_record_wherever_it_is_cut(data, stretches):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    whole, cut, pieces, last = Record(), Record(), [], data.draw(graphs(5))
    sent, on_air = [], []
    for _ in range(stretches):
        length, graph = data.draw(st.integers(1, 4)), data.draw(graphs(5))
        numbers = rng.random((length, 5)) < 0.5, rng.random((length, 5)), rng.random(length)
        bits = rng.integers(0, 3, (length, 2 * len(graph.links))) if data.draw(st.booleans()) else None
        steps = Steps(whole.end, last, graph, *numbers, bits)
        sent.extend((graph, row) for row in steps.bits_sent(7))
        on_air.extend(steps.bits_of_iterations(7))
        bandwidths, last = rng.random(5) + 1, graph
        for record in (whole, cut):
            record.add(steps, bandwidths, 7)
        if data.draw(st.booleans()):
            scores = {metric: Scores(*rng.random((2, 5)), *rng.random(2)) for metric in CLASSIFICATION}
            for record in (whole, cut):
                record.add_evaluation(Evaluation(CLASSIFICATION, scores, np.arange(5)))
        if data.draw(st.booleans()):
            pieces.append(cut.take())
            cut = Record(cut.end, cut.time_total, cut.largest_time)  # as from a checkpoint
    pieces.append(cut.take())
    everything = whole.take()
    for table in ("metrics", "events", "network"):
        assert_frame_equal(joined(pieces, table), everything.tables[table], check_exact=True)
    assert [piece.end for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
    assert everything.tables["metrics"].columns == list(METRICS)
    assert everything.tables["metrics"]["iteration"].to_list() == list(range(everything.end))
    assert everything.tables["events"]["fired"].list.len().to_list() == everything.tables["metrics"]["fired"].to_list()
    assert (
        everything.tables["events"]["link_from"].list.len().to_list()
        == everything.tables["metrics"]["links_used"].to_list()
    )
    assert everything.tables["metrics"]["bits"].to_list() == on_air
    for row, (graph, bits) in zip(everything.tables["events"].iter_rows(named=True), sent, strict=True):
        there = dict(zip(zip(row["link_from"], row["link_to"], strict=True), row["bits_forth"], strict=True))
        back = dict(zip(zip(row["link_to"], row["link_from"], strict=True), row["bits_back"], strict=True))
        ends = zip(graph.directed.sender.tolist(), graph.directed.receiver.tolist(), strict=True)
        wanted = dict(zip(ends, bits.tolist(), strict=True))
        assert {end: count for end, count in (there | back).items() if count} == {e: n for e, n in wanted.items() if n}
    totals = everything.tables["metrics"]["transmission_time"].cum_sum()
    assert np.allclose(totals, everything.tables["metrics"]["transmission_time_total"], rtol=1e-12)


def test_columns_of_lists():
    columns = {"number": np.array([3, 1, 4, 1], dtype=np.int32), "bits": np.array([2**40, 0, 5, 6])}
    table = list_columns(columns, np.array([0, 2, 0, 1, 1, 0]))
    assert table["number"].to_list() == [[], [3, 1], [], [4], [1], []]
    assert table["bits"].to_list() == [[], [2**40, 0], [], [5], [6], []]
    assert table.schema == {"number": pl.List(pl.Int32), "bits": pl.List(pl.Int64)}
    nothing = {name: values[:0] for name, values in columns.items()}
    assert list_columns(nothing, np.array([0, 0])).rows() == [([], []), ([], [])]
    assert list_columns(nothing, np.array([], dtype=np.int64)).schema == table.schema


def test_transmission_times_do_not_depend_on_how_iterations_are_cut():
    """To the last bit: NumPy adds up a row otherwise if it does not lie in one piece of memory."""
    rng = np.random.default_rng(0)
    graph = Graph.of(18, [(i, j) for i in range(18) for j in range(i)])
    fired, bandwidths = rng.random((40, 18)) < 0.3, rng.random(18) + 1

    def steps(first: int, end: int) -> Steps:
        return Steps(first, graph, graph, fired[first:end], np.zeros((end - first, 18)), np.zeros(end - first))

    whole = steps(0, 40).transmission_times(bandwidths, 7)
    for length in (1, 3, 7):
        parts = [steps(k, min(k + length, 40)) for k in range(0, 40, length)]
        assert np.array_equal(np.concatenate([part.transmission_times(bandwidths, 7) for part in parts]), whole)
