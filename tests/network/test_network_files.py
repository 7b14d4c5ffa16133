"""A network file is read as it stands, or refused with the place that is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from efhc.base.errors import InputError
from efhc.base.inputs import CONFIG_FOLDER
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network.topologies import EdgeListFile, EdgeSequenceFile, GraphMLFile

SEED = Randomness(0)
Write = Callable[..., Path]


def pairs(graph: Graph) -> set[tuple[int, int]]:
    return set(map(tuple, graph.links.tolist()))


def refused(read: Callable[[], object]) -> str:
    """The one line of the InputError about `path`."""
    with pytest.raises(InputError) as caught:
        read()
    assert caught.value.field == "path"
    text = str(caught.value)
    assert text.startswith("path: ")
    assert "\n" not in text
    return text


# Edge lists


def test_edge_list_with_comments_commas_and_blank_lines(write: Write):
    path = write("# my network\n0 1\n1,2   # a comma\n\n  3 , 2\n\t4\t0\n")
    assert pairs(EdgeListFile(path=path).graph(5, SEED)) == {(0, 1), (1, 2), (2, 3), (0, 4)}


@given(data=st.data(), devices=st.integers(2, 12), both=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph_survives_the_file(tmp_path: Path, data: st.DataObject, devices: int, both: bool):
    ends = st.tuples(st.integers(0, devices - 1), st.integers(0, devices - 1)).filter(lambda link: link[0] != link[1])
    links = data.draw(st.lists(ends, unique_by=frozenset))
    path = tmp_path / "links.txt"
    lines = links + [(j, i) for i, j in links] if both else links
    path.write_text("".join(f"{i} {j}\n" for i, j in lines))
    assert pairs(EdgeListFile(path=path).graph(devices, SEED)) == {(min(link), max(link)) for link in links}


def test_a_file_may_leave_devices_alone_unless_connected_is_asked(write: Write):
    path = write("0 1\n")
    assert list(EdgeListFile(path=path).graph(3, SEED).degrees) == [1, 1, 0]
    text = refused(lambda: EdgeListFile(path=path, connected=True).graph(3, SEED))
    assert "disconnected" in text
    assert str(path) in text
    assert pairs(EdgeListFile(path=path, connected=True).graph(2, SEED)) == {(0, 1)}


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        ("0 1\n1 0\n1 2\n", "line 3", "asymmetric"),
        ("0 1\n\n2 2\n", "line 3", "self-loop at device 2"),
        ("0 1\n1 3\n", "line 2", "device 3"),
        ("0 1\n-1 2\n", "line 2", "device -1"),
        ("0 1\n1 2\n0 1\n", "line 3", "link 0 1 twice"),
        ("0 1\none two\n", "line 2", "one two"),
        ("# head\n0 1 2\n", "line 2", "0 1 2"),
        ("0\n", "line 1", "'0'"),
        ("0 1.0\n", "line 1", "1.0"),
        ("0_1 2\n", "line 1", "two device numbers a line"),  # numbers as Python alone writes them
        ("\u0660 1\n", "line 1", "two device numbers a line"),
        ("1" * 5000 + " 0\n", "line 1", "two device numbers a line"),
    ],
)
def test_edge_list_refusals_name_line_and_fault(write: Write, content: str, place: str, what: str):
    text = refused(lambda: EdgeListFile(path=write(content)).graph(3, SEED))
    assert place in text
    assert what in text


@pytest.mark.parametrize("kind", [EdgeListFile, GraphMLFile])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, write: Write, kind: type[EdgeListFile]):
    for path in (tmp_path / "nowhere.txt", tmp_path, write(b"0 1\n\xff\xfe\n")):
        assert str(path) in refused(lambda path=path: kind(path=path).graph(3, SEED))


def test_a_relative_path_counts_from_the_config_file_else_from_here(write: Write, monkeypatch: pytest.MonkeyPatch):
    path = write("0 1\n")
    table = {"kind": "edge-list", "path": path.name}
    from_config = EdgeListFile.model_validate(table, context={CONFIG_FOLDER: path.parent})
    assert from_config.path == path
    monkeypatch.chdir(path.parent)
    assert EdgeListFile(path=path.name).path == path


# GraphML


def test_graphml_with_device_numbers(tmp_path: Path):
    path = tmp_path / "net.graphml"
    graph = nx.Graph([(3, 1), (1, 0), (0, 2)])  # nodes stand as 3, 1, 0, 2
    nx.write_graphml(graph, path)
    assert pairs(GraphMLFile(path=path).graph(4, SEED)) == {(1, 3), (0, 1), (0, 2)}


def test_graphml_with_names_numbers_them_in_order(tmp_path: Path):
    path = tmp_path / "net.graphml"
    nx.write_graphml(nx.Graph([("anna", "bob"), ("bob", "carl")]), path)
    assert pairs(GraphMLFile(path=path, connected=True).graph(3, SEED)) == {(0, 1), (1, 2)}


def test_graphml_directed_must_be_symmetric(tmp_path: Path):
    path = tmp_path / "net.graphml"
    graph = nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 1)])
    nx.write_graphml(graph, path)
    assert pairs(GraphMLFile(path=path).graph(3, SEED)) == {(0, 1), (1, 2)}
    graph.remove_edge(2, 1)
    nx.write_graphml(graph, path)
    text = refused(lambda: GraphMLFile(path=path).graph(3, SEED))
    assert "asymmetric" in text
    assert "1-2" in text


@pytest.mark.parametrize(
    ("links", "devices", "what"),
    [
        ([(0, 1), (1, 2), (2, 3)], 5, "4 nodes"),
        ([(0, 1), (1, 1)], 2, "self-loop at device 1"),
        ([(1, 2), (2, 3)], 3, "nodes 1, 2, 3"),
        ([(0, 1), (1, 57)], 3, "nodes 0, 1, 57"),
        ([(0, 1), (2, 3)], 4, "disconnected"),
        ([(0, int("1" * 50))], 2, "devices 0 to 1"),
    ],
)
def test_graphml_that_does_not_fit_is_refused(tmp_path: Path, links: list[tuple[int, int]], devices: int, what: str):
    path = tmp_path / "net.graphml"
    nx.write_graphml(nx.Graph([(str(i), str(j)) for i, j in links]), path)
    assert what in refused(lambda: GraphMLFile(path=path, connected=True).graph(devices, SEED))


@pytest.mark.parametrize("content", ["", "0 1\n", "<a/>", "<graphml>", '<key id="d"/>'])
def test_graphml_that_is_none(write: Write, content: str):
    path = write(content)
    assert str(path) in refused(lambda: GraphMLFile(path=path).graph(2, SEED))


def test_graphml_with_a_second_graph_is_refused(write: Write):
    graph = '<graph edgedefault="undirected"><node id="0"/><node id="1"/><edge source="0" target="1"/></graph>'
    files = [f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph * n}</graphml>' for n in (1, 2)]
    assert pairs(GraphMLFile(path=write(files[0])).graph(2, SEED)) == {(0, 1)}
    assert "2 graphs" in refused(lambda: GraphMLFile(path=write(files[1])).graph(2, SEED))


# One list per iteration


def test_edge_sequence_repeats_or_holds(write: Write):
    lists = [[[0, 1], [1, 2]], [], [[2, 0]]]
    want = [{(0, 1), (1, 2)}, set(), {(0, 2)}]
    path = write(json.dumps(lists))
    repeated = EdgeSequenceFile(path=path).over_time(3, SEED)
    held = EdgeSequenceFile(path=path, at_end="hold").over_time(3, SEED)
    for k in range(10):
        assert pairs(repeated.graph(k)) == want[k % 3]
        assert pairs(held.graph(k)) == want[min(k, 2)]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[[[0, 1]],\n[[0, 1]", "line 2"),
        ("", "line 1"),
        ("[]", "no list of iterations"),
        ('{"0": [[0, 1]]}', "no list of iterations"),
        ("[[[0, 1]], 3]", "iteration 1"),
        ("[[[0, 1]], [[0, 1, 2]]]", "iteration 1"),
        ("[[[0, 1]], [0, 1]]", "iteration 1"),
        ("[[], [[0, 1.0]]]", "iteration 1"),
        ('[[], [[0, "1"]]]', "iteration 1"),
        ("[[], [[0, true]]]", "iteration 1"),
        ("[[], [[0, NaN]]]", "iteration 1"),
        ("[[], [[0, 1], [1, 3]]]", "iteration 1, link 1"),
        ("[[], [[0, -1]]]", "iteration 1, link 0"),
        ("[[], [], [[1, 1]]]", "iteration 2, link 0"),
        ("[[[0, 1], [0, 1]]]", "iteration 0, link 1"),
        ("[[[0, 1], [1, 0], [1, 2]]]", "iteration 0, link 2"),
        ("[" * 100_000, "a JSON list"),
        ("[[[0, " + "9" * 5000 + "]]]", "a JSON list"),
    ],
)
def test_edge_sequence_refusals_name_the_place(write: Write, content: str, place: str):
    path = write(content)
    assert place in refused(lambda: EdgeSequenceFile(path=path).over_time(3, SEED))
