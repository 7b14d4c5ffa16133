from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from problems import graphs

from efhc.drivers.record import METRICS, Record, list_column
from efhc.drivers.steps import Steps


def joined(pieces, table):
    return pl.concat(piece.tables[table] for piece in pieces)


@given(st.data(), st.integers(1, 6))
def test_pieces_are_the_whole_record_wherever_it_is_cut(data, stretches):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    whole, cut, pieces, last = Record(), Record(), [], data.draw(graphs(5))
    for _ in range(stretches):
        length, graph = data.draw(st.integers(1, 4)), data.draw(graphs(5))
        numbers = rng.random((length, 5)) < 0.5, rng.random((length, 5)), rng.random(length)
        steps = Steps(whole.end, last, graph, *numbers)
        bandwidths, last = rng.random(5) + 1, graph
        for record in (whole, cut):
            record.add(steps, bandwidths, 7)
        if data.draw(st.booleans()):
            accuracies, of_mean = rng.random(5), rng.random()
            for record in (whole, cut):
                record.add_accuracies(accuracies, of_mean)
        if data.draw(st.booleans()):
            pieces.append(cut.take())
            cut = Record(first=cut.end, time_total=cut.time_total)  # as from a checkpoint
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
    totals = everything.tables["metrics"]["transmission_time"].cum_sum()
    assert np.allclose(totals, everything.tables["metrics"]["transmission_time_total"], rtol=1e-12)


def test_a_column_of_lists():
    column = list_column(np.array([3, 1, 4, 1]), np.array([0, 2, 0, 1, 1, 0]))
    assert column.to_list() == [[], [3, 1], [], [4], [1], []]
    assert column.dtype == pl.List(pl.Int32)
    assert list_column(np.array([], dtype=np.int64), np.array([0, 0])).to_list() == [[], []]
    assert list_column(np.array([], dtype=np.int64), np.array([], dtype=np.int64)).dtype == pl.List(pl.Int32)
