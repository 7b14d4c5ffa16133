"""The look of strategies: the same in figures and on pages. Nothing here draws."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from itertools import product

# Okabe-Ito colours, which readers with any colour vision can tell apart, and a dash pattern for prints without colour.
STYLES = [("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#E69F00", "-"), ("#56B4E9", "--")]
KNOWN = dict(zip(("EF-HC", "GT", "ZT", "RG"), STYLES, strict=False)) | {
    "Never": ("#000000", ":"),
    "entrywise": ("#E69F00", "-"),
    "entrywise + momentum": ("#882255", "-"),
    "paced": ("#C1121F", "-"),
    "common": ("#332288", "--"),
    "shuffled": ("#117733", "-."),
}
"""The look of the built-in strategies, and of controls, under their usual names."""
# Colours vary fastest, so that neighbours in this list differ in colour.
OTHERS = [
    (colour, dash)
    for dash, colour in product(
        ("-", "--", "-.", ":"), ("#56B4E9", "#44AA99", "#999933", "#332288", "#661100", "#AA4499", "#117733")
    )
]


def strategy_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the dash pattern of each strategy.

    The look depends on the name alone, so a strategy looks the same in all figures. Names outside of `KNOWN` choose by
    a checksum of the name; where two of one figure choose the same look, the alphabetically later one takes the next
    that is free.
    """
    ordered = list(dict.fromkeys(names))
    styles = {name: KNOWN[name] for name in ordered if name in KNOWN}
    taken = set(styles.values())
    for name in sorted(set(ordered) - set(KNOWN)):
        first = zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(OTHERS)
        candidates = OTHERS[first:] + OTHERS[:first]
        styles[name] = next((style for style in candidates if style not in taken), candidates[0])
        taken.add(styles[name])
    return {name: styles[name] for name in ordered}


def strategy_colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each strategy, the same in all figures."""
    return {name: colour for name, (colour, _) in strategy_styles(names).items()}
