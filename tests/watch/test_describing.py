"""The command that a page shows to go on with a stopped experiment goes on with it, wherever it is typed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import efhc
from efhc.watch.describing import describe, repeat_command
from efhc.watch.discovery import Discovery

CONFIG = 'devices = 3\niterations = 20\nseeds = [0, 1]\nnetwork = "ring"\nstrategies.EF-HC.kind = "ef-hc"\n'


def shown(folder: Path) -> list[str]:
    """The words of the command that a page shows for each run of the experiment in a folder."""
    (group,) = Discovery(folder).find()
    (command,) = {repeat_command(run, group) for run in group.runs}
    return shlex.split(command)


def test_facts_leave_out_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'devices = 3\niterations = 20\nseeds = [0]\nstrategies.ZT.kind = "zt"\n'
        'data = { kind = "digits", standardize = true }\n'
        'network = { kind = "geometric", radius = 0.6, connected = true, attempts = 10000 }\n'
        'model = { kind = "code.py:Own", deep = true }\n'
    )
    (tmp_path / "meta.json").write_text('{"status": "running", "wall_seconds": 0.25, "backend": "loop"}')
    (group,) = Discovery(tmp_path).find()
    facts = describe(group.runs[0], group)
    assert {name: facts[name] for name in ("data", "network", "model", "backend", "time")} == {
        "data": "digits",
        "network": "geometric (radius 0.6)",
        "model": "code.py:Own (deep true)",
        "backend": "loop",
        "time": "under 1 s",
    }
    (tmp_path / "meta.json").write_text('{"status": "running", "wall_seconds": 75.4}')
    (group,) = Discovery(tmp_path).find()
    assert describe(group.runs[0], group)["time"] == "1 min 15 s"


def test_a_stopped_run_goes_on_with_its_store(
    tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(CONFIG)
    config, out, store = (tmp_path / name for name in ("out/config.toml", "out", "my store"))
    simulate, in_store = efhc.simulate, ["--store", str(store)]

    def stop(strategy: str, seed: int, done: int) -> None:
        if seed == 1:
            raise KeyboardInterrupt

    def stopped(*words: str) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setattr(
                "efhc.experiments.runs.simulate.simulate",
                lambda *given, **options: simulate(*given, **options | {"progress": stop}),
            )
            assert command("run", "mine.toml", "--out", "out", "--jobs", 1, *words).returncode == 130
        return shown(out)

    to_resume = ["efhc", "run", str(config), "--out", str(out)]
    assert stopped() == [*to_resume, "--resume"]
    words = stopped("--resume", "--store", "my store")
    assert words == [*to_resume, *in_store, "--resume"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = command(*words[1:], cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert len(list(store.glob("*/meta.json"))) == 2
    assert shown(out)[:3] == ["efhc", "run", str(config)]
    assert "--resume" not in shown(out)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"made_by": "nodes, lockstep"}, "launch CONFIG --out OUT --mode lockstep --resume"),
        ({"made_by": "nodes, free-running"}, "launch CONFIG --out OUT --mode free-running --resume"),
        (
            {"made_by": "nodes, free-running", "netns": True},
            "launch CONFIG --out OUT --mode free-running --netns --resume",
        ),
        ({"sessions": [{"store": "/s"}]}, "run CONFIG --out OUT --store /s --resume"),
        ({"sessions": [{"store": "/s"}, {}]}, "run CONFIG --out OUT --store /s --resume"),
        ({"sessions": [{"store": "--help"}]}, "run CONFIG --out OUT --resume"),
        ({"sessions": [{"store": 3}]}, "run CONFIG --out OUT --resume"),
        ({"sessions": ["/s"]}, "run CONFIG --out OUT --resume"),
        ({"sessions": [], "made_by": ["nodes, lockstep"]}, "run CONFIG --out OUT --resume"),
        ({"sessions": 5, "made_by": "nodes, --help"}, "run CONFIG --out OUT --resume"),
        (None, "run CONFIG --out OUT --resume"),  # it was just begun
    ],
)
def test_only_known_words_of_a_stranger_are_shown(meta: dict[str, Any] | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    if meta is not None:
        (tmp_path / "meta.json").write_text(json.dumps({"status": "running"} | meta))
    named = words.replace("CONFIG", str(tmp_path / "config.toml")).replace("OUT", str(tmp_path))
    assert shown(tmp_path) == ["efhc", *named.split()]
