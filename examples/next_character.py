"""The next character of a text, in the format of LEAF (as its Shakespeare): a device per speaker.

Run `python examples/next_character.py TEXT TEXT ...`, with a file for each speaker; without any, Python's own manual
speaks. It writes speakers/train/ and speakers/test/, as LEAF's scripts do, and prints what each strategy reaches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import efhc
from efhc.learning.data.leaf import ALPHABET

SEEN, TESTED = 80, 0.2


def samples_of(text, most=1500):
    """80 characters, and the one that follows, at each place whose next character LEAF knows."""
    text = " ".join(text.split())
    places = [place for place in range(SEEN, len(text)) if text[place] in ALPHABET][:most]
    return [text[place - SEEN : place] for place in places], [text[place] for place in places]


def write_speakers(texts, folder=Path("speakers")):
    """The end of each text is for the test."""
    parts = {"train": {}, "test": {}}
    for speaker, text in texts.items():
        x, y = samples_of(text)
        cut = int(len(x) * (1 - TESTED))
        parts["train"][speaker] = {"x": x[:cut], "y": y[:cut]}
        parts["test"][speaker] = {"x": x[cut:], "y": y[cut:]}
    for part, users in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        counts = [len(samples["y"]) for samples in users.values()]
        table = {"users": list(users), "num_samples": counts, "user_data": users}
        (folder / part / "speakers.json").write_text(json.dumps(table))
    return folder


def main(files=()):
    texts = {Path(file).stem: Path(file).read_text() for file in files}
    texts = texts or {name: topics[name] for name in ("class", "import", "formatstrings")}
    result = efhc.simulate(
        name="next-character",
        data=efhc.Shakespeare(path=write_speakers(texts), characters=10),
        devices=len(texts),
        partition="groups",
        network="complete",
        model=efhc.MLP(hidden=(64,)),
        initial_models="shared",
        iterations=400,
        seeds=[0],
        step_size=efhc.Constant(value=0.2),
        strategies={"EF-HC": "ef-hc", "ZT": "zt"},
    )
    ends = result.evaluations.group_by("strategy", maintain_order=True).last()
    print(ends.select("strategy", "accuracy", "own_accuracy", "accuracy_min", "loss"))
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
