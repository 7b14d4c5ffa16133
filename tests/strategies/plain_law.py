"""One iteration of the general law in plain loops: devices, neighbours and coordinates, one after the other.

    y_i = x_i - alpha (mu gate_i m_i + g_i - h_i)
    q_i = C(y_i - x_hat_i) where the trigger says so,   x_hat_i <- x_hat_i + q_i
    x_i <- y_i + f_i,   h_i <- h_i + theta sum_j f_ij / A_ij,   m_i <- mu m_i + (1 - mu) (x_i before - x_i) / alpha

    estimates    f_i = gamma sum_j w_ij (x_hat_j - x_hat_i)
    half-steps   f_i = sum_j c_ij ([i sent to j] (x_hat_j before - x_hat_i) + [j sent to i] (x_hat_j - x_hat_i before))
                 c_ij = min(gamma w_ij, 1 / (2 max(d_i, d_j)))

The gate is 1, but for half-steps min(1, steps over links since the last gradient / neighbours). A_ij is the sum of
alpha since the link was last used; of half-steps, since the sender's last message over it. Half-steps take back what a
link has taught h when the link goes.

Nothing here comes from efhc. A vector is a list of numbers, a link is a pair (i, j) with i < j, and a directed link is
a pair (sender, receiver). `Strategy` is what does not change, `Devices` is what is remembered, `Given` is what an
iteration is given from outside, and `Done` is what it did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Literal

Vector = list[float]
Pair = tuple[int, int]
Message = dict[int, float]
"""What is added to the coordinates that are sent."""


@dataclass
class Strategy:
    """The parts of a strategy that are numbers and words."""

    mixing: Literal["exchange", "half-steps", "estimates"] = "exchange"
    when: Literal["always", "sent"] = "always"
    rate: float = 1.0
    """gamma"""
    momentum: float = 0.0
    """mu"""
    correction: float = 0.0
    """theta"""
    codec: tuple[str, float] = ("full", 0)
    """Its name, and the bits of `levels` or the share of `top-k`."""
    budget: float | None = None
    """The share of what sending everything in every iteration would cost. None: devices may send what they like."""
    every: int = 1
    """Devices mix estimates only at multiples of this number of iterations."""
    links_vary: bool = False
    """Whether the links that may be used are drawn anew in every iteration."""
    width: int = 32
    """The bits of a number in a message; an exchange counts 32 in any precision."""


@dataclass
class Devices:
    """What the devices remember from one iteration to the next."""

    models: list[Vector]
    """x_i"""
    known: dict[Pair, Vector]
    """x_hat by (i, j): what j knows of i. Except for half-steps all neighbours know the same: the key is (i, i)."""
    unknown: set[Pair] = field(default_factory=set)
    """Directed links over which no whole model was sent yet, where one has to be (Event 1)."""
    momenta: list[Vector] = field(default_factory=list)
    """m_i"""
    corrections: list[Vector] = field(default_factory=list)
    """h_i"""
    since: dict[Pair, float] = field(default_factory=dict)
    """The sum of alpha since each link was last used; of half-steps, by (i, j), since i's last message to j."""
    taught: dict[Pair, Vector] = field(default_factory=dict)
    """Half-steps: by (i, j), what of h_i the link to j has taught."""
    steps: list[int] = field(default_factory=list)
    """Half-steps: how many were added to each device since its last gradient."""
    credit: list[float] = field(default_factory=list)
    """Bits that each device may spend."""


@dataclass
class Given:
    """What is decided outside: the network, the gradients, the thresholds and the losses of messages."""

    k: int
    alpha: float
    neighbours: list[set[int]]
    previous_neighbours: list[set[int]]
    gradients: list[Vector]
    """g_i(x_i)"""
    fires: set[int] | None = None
    """Devices that fire whatever their drift, if the trigger does not look at it."""
    thresholds: list[float] | None = None
    """Norm trigger: device i sends, per link to those neighbours, where (1/n)^(1/2) ||drift||_2 >= thresholds[i]."""
    entry_thresholds: list[float] | None = None
    """Entrywise trigger: device i sends coordinates with |drift_l| >= entry_thresholds[i]."""
    active: set[Pair] | None = None
    """The links that may be used. None: all."""
    weights: dict[Pair, float] | None = None
    """w_ij. None: those of Metropolis."""
    lost: set[Pair] = field(default_factory=set)
    """Exchange: directed links over which nothing arrives in this iteration."""


@dataclass
class Done:
    """What the devices did."""

    fired: set[int]
    bits: dict[Pair, int]
    """Of every directed link."""
    used: set[Pair]
    """Links whose two ends mixed; of half-steps, directed links over which a message went."""
    mixed: list[Vector]
    """f_i"""


def begin(strategy: Strategy, models: list[Vector], neighbours: list[set[int]], *, is_shared: bool) -> Devices:
    """The devices at k = 0. `is_shared` says that all know that all start from one model."""
    everyone = range(len(models))
    both_ways = [(i, j) for i in everyone for j in neighbours[i]]
    keys = both_ways if strategy.mixing == "half-steps" else [(i, i) for i in everyone]
    return Devices(
        models=[list(model) for model in models],
        known={(i, j): list(models[i]) for i, j in keys},
        unknown=set() if is_shared or strategy.mixing == "exchange" else set(both_ways),
        momenta=[[0.0] * len(model) for model in models],
        corrections=[[0.0] * len(model) for model in models],
        since={(i, j): 0.0 for i, j in both_ways if i < j or strategy.mixing == "half-steps"},
        taught={(i, j): [0.0] * len(models[i]) for i, j in both_ways},
        steps=[0 for _ in models],
        credit=[0.0 for _ in models],
    )


def iterate(strategy: Strategy, devices: Devices, given: Given) -> tuple[Devices, Done]:
    """One iteration of all devices."""
    devices = met(strategy, devices, given)
    stepped = [local_step(strategy, devices, given, i) for i in range(len(devices.models))]
    law = {"exchange": exchange, "half-steps": half_steps, "estimates": estimates}[strategy.mixing]
    known, unknown, credit, done, flows = law(strategy, devices, given, stepped)
    models, momenta, corrections = [], [], []
    taught = {pair: list(vector) for pair, vector in devices.taught.items()}
    for i, y in enumerate(stepped):
        x, m, mu = devices.models[i], devices.momenta[i], strategy.momentum
        mine = [flow for flow in flows if flow.device == i]
        f = [sum(flow.step[c] for flow in mine) for c in range(len(y))]
        done.mixed.append(f)
        moved = [y[c] + f[c] for c in range(len(y))]
        models.append(moved)
        momenta.append([mu * m[c] + (1 - mu) * (x[c] - moved[c]) / given.alpha for c in range(len(y))])
        corrections.append(list(devices.corrections[i]))
        for flow in mine:
            for c in range(len(y)):
                learned = strategy.correction * flow.step[c] / flow.over
                corrections[i][c] += learned
                taught[i, flow.neighbour][c] += learned
    since = {link: 0.0 if link in done.used else a + given.alpha for link, a in devices.since.items()}
    steps = [sum(flow.device == i for flow in flows) for i in range(len(models))]
    return Devices(models, known, unknown, momenta, corrections, since, taught, steps, credit), done


@dataclass
class Flow:
    """What a link adds to one of its ends."""

    device: int
    neighbour: int
    step: Vector
    over: float
    """A_ij"""


def met(strategy: Strategy, devices: Devices, given: Given) -> Devices:
    """Forget what was remembered of links that are gone, and begin with those that are new."""
    before = {(i, j) for i, those in enumerate(given.previous_neighbours) for j in those}
    now = {(i, j) for i, those in enumerate(given.neighbours) for j in those}
    known, since, taught = dict(devices.known), dict(devices.since), dict(devices.taught)
    corrections, unknown = [list(h) for h in devices.corrections], {pair for pair in devices.unknown if pair in now}
    is_half_steps = strategy.mixing == "half-steps"
    for i, j in before - now:
        known.pop((i, j), None)
        since.pop((i, j), None)
        gone = taught.pop((i, j))
        if is_half_steps:  # h forgets what only this link could have corrected
            corrections[i] = minus(corrections[i], gone)
    for i, j in now - before:
        taught[i, j] = [0.0] * len(devices.models[i])
        if strategy.mixing != "exchange":
            unknown.add((i, j))
        if is_half_steps:  # the whole model comes first, and no step is made on it
            known[i, j] = list(devices.models[i])
            since[i, j] = 0.0
        elif i < j:
            since[i, j] = 0.0 if given.k == 0 else math.inf  # its first use teaches nothing
    return replace(devices, known=known, unknown=unknown, since=since, taught=taught, corrections=corrections)


def local_step(strategy: Strategy, devices: Devices, given: Given, i: int) -> Vector:
    """y_i"""
    x, m, h, g = devices.models[i], devices.momenta[i], devices.corrections[i], given.gradients[i]
    gate, neighbours = 1.0, len(given.neighbours[i])
    if strategy.mixing == "half-steps" and neighbours:
        gate = min(1.0, devices.steps[i] / neighbours)
    return [x[c] - given.alpha * (strategy.momentum * gate * m[c] + g[c] - h[c]) for c in range(len(x))]


def links_of(given: Given) -> set[Pair]:
    """The links that may be used."""
    physical = {(i, j) for i, those in enumerate(given.neighbours) for j in those if i < j}
    return physical if given.active is None else physical & given.active


def weight(given: Given, i: int, j: int) -> float:
    """w_ij"""
    if given.weights is not None:
        return given.weights[min(i, j), max(i, j)]
    return min(1 / (1 + len(given.neighbours[i])), 1 / (1 + len(given.neighbours[j])))


def norm(vector: Vector) -> float:
    """(1/n)^(1/2) ||vector||_2"""
    return sqrt(1 / len(vector)) * sqrt(sum(entry**2 for entry in vector))


def minus(a: Vector, b: Vector) -> Vector:
    return [x - y for x, y in zip(a, b, strict=True)]


# Exchange: the paper's


def exchange(strategy: Strategy, devices: Devices, given: Given, stepped: list[Vector]):
    """Events 1 to 3: both ends of a link send their models before the step and pay, or neither does."""
    x, everyone, n = devices.models, range(len(devices.models)), len(devices.models[0])
    whole = 32 * n
    active, credit = links_of(given), grown(strategy, devices, given, n)
    new = {(i, j) for i, j in active if j not in given.previous_neighbours[i]}

    wants = set(given.fires or ())
    for i in everyone:
        if given.thresholds is not None and norm(minus(x[i], devices.known[i, i])) >= given.thresholds[i]:
            wants.add(i)
    wanted = {(i, j) for i, j in active if i in wants or j in wants} | new

    can_pay = set(everyone)
    if strategy.budget is not None:
        for i in everyone:
            count = sum(i in link for link in wanted)
            if count and credit[i] < whole * count / len(given.neighbours[i]):
                can_pay.discard(i)
    paid = {(i, j) for i, j in wanted if i in can_pay and j in can_pay}
    for link in paid:
        for i in link:
            credit[i] -= whole / len(given.neighbours[i])
    idle = {i for i in everyone if not any(i in link for link in wanted)}
    fired = {i for i in wants & can_pay if i in idle or any(i in link for link in paid)}
    known = {**devices.known, **{(i, i): list(x[i]) for i in fired}}

    used = {(i, j) for i, j in paid if (i, j) not in given.lost and (j, i) not in given.lost}
    flows = []
    for i, j in used:
        over = devices.since[i, j] + given.alpha
        for here, there in ((i, j), (j, i)):
            step = [weight(given, i, j) * d for d in minus(x[there], x[here])]
            flows.append(Flow(here, there, step, over))
    bits = {(i, j): whole if (min(i, j), max(i, j)) in paid else 0 for i in everyone for j in given.neighbours[i]}
    return known, set(), credit, Done(fired, bits, used, []), flows


def grown(strategy: Strategy, devices: Devices, given: Given, n: int) -> list[float]:
    """The credit of every device with what this iteration adds to it."""
    share = strategy.budget or 0.0
    return [old + (share * 32 * n if given.neighbours[i] else 0.0) for i, old in enumerate(devices.credit)]


# Estimates and half-steps: only senders pay


def send(strategy: Strategy, devices: Devices, given: Given, stepped: list[Vector]):
    """Every device sends what its trigger and its credit allow, which changes what neighbours know.

    Returns what is known, what is still unknown, the credit, who has fired, all bits, and the directed links over which
    more than the model of Event 1 was sent.
    """
    everyone, n = range(len(devices.models)), len(devices.models[0])
    active, credit = links_of(given), grown(strategy, devices, given, n)
    known = {pair: list(vector) for pair, vector in devices.known.items()}
    per_link = strategy.mixing == "half-steps"
    fired, sent, introduced = set(), set(), set()
    bits = {(i, j): 0 for i in everyone for j in given.neighbours[i]}
    for i in everyone:
        hears = sorted(j for j in given.neighbours[i] if (min(i, j), max(i, j)) in active)
        degree = len(given.neighbours[i])
        # Event 1. A neighbour that knows nothing of i is sent what all others know already, or for half-steps the model
        # itself, whatever the credit.
        whole = whole_bytes(8 + strategy.width * n)
        for j in given.neighbours[i] if strategy.links_vary else hears:
            if (i, j) in devices.unknown:
                introduced.add((i, j))
                bits[i, j] += whole
                credit[i] -= whole / degree
        # Event 2. One message for all neighbours, or one for each of them.
        place_of = {j: (i, j) if per_link else (i, i) for j in hears}
        places = set(place_of.values()) if per_link else {(i, i)}
        messages = messages_of(strategy, given, i, {place: minus(stepped[i], known[place]) for place in places})
        size = {place: bits_of(message, n, strategy) for place, message in messages.items()}
        cost = sum(size.get(place_of[j], 0) for j in hears) / max(1, degree)
        if messages and (strategy.budget is None or credit[i] >= cost):
            fired.add(i)
            credit[i] -= cost
            for j in hears:
                bits[i, j] += size.get(place_of[j], 0)
                if place_of[j] in messages:
                    sent.add((i, j))
            for place, message in messages.items():
                for c, change in message.items():
                    known[place][c] += change
    return known, devices.unknown - introduced, credit, fired, bits, sent


def half_steps(strategy: Strategy, devices: Devices, given: Given, stepped: list[Vector]):
    """A message from i to j is a step d of i and the step -d of j, which nobody has to answer."""
    known, unknown, credit, fired, bits, sent = send(strategy, devices, given, stepped)
    flows = []
    for i, j in sorted(sent):
        largest = 1 / (2 * max(len(given.neighbours[i]), len(given.neighbours[j])))
        c, over = min(strategy.rate * weight(given, i, j), largest), devices.since[i, j] + given.alpha
        d = [c * entry for entry in minus(devices.known[j, i], known[i, j])]
        flows += [Flow(i, j, d, over), Flow(j, i, [-entry for entry in d], over)]
    return known, unknown, credit, Done(fired, bits, sent, []), flows


def estimates(strategy: Strategy, devices: Devices, given: Given, stepped: list[Vector]):
    """All neighbours mix what they know of one another, in every iteration or after every message."""
    known, unknown, credit, fired, bits, _ = send(strategy, devices, given, stepped)
    used, flows = set(), []
    seldom = strategy.when == "sent" or strategy.every > 1 or strategy.links_vary
    for i, j in links_of(given) if given.k % strategy.every == 0 else ():
        if strategy.when == "always" or bits[i, j] or bits[j, i]:
            used.add((i, j))
            over = given.alpha + (devices.since[i, j] if seldom else 0.0)
            step = [strategy.rate * weight(given, i, j) * d for d in minus(known[j, j], known[i, i])]
            flows += [Flow(i, j, step, over), Flow(j, i, [-entry for entry in step], over)]
    return known, unknown, credit, Done(fired, bits, used, []), flows


def messages_of(strategy: Strategy, given: Given, i: int, drifts: dict[Pair, Vector]) -> dict[Pair, Message]:
    """What device i wants to send, by whom it is for. Where nothing is sent, there is no message."""
    name, parameter = strategy.codec
    encode = {"full": full, "levels": levels, "sign": sign, "top-k": top_k}[name]
    messages = {}
    for place, drift in drifts.items():
        threshold = 0.0
        if given.entry_thresholds is not None:
            is_due, threshold = True, given.entry_thresholds[i]
        elif given.thresholds is not None:
            is_due = norm(drift) >= given.thresholds[i]
        else:
            is_due = i in (given.fires or ())
        if strategy.mixing == "half-steps" and place[1] in given.neighbours[i] - given.previous_neighbours[i]:
            is_due, threshold = True, 0.0  # Event 1: two devices that have just met
        if is_due and (message := encode(drift, parameter, threshold)):
            messages[place] = message
    return messages


# Codecs: what is sent of a difference


def full(delta: Vector, _: float, threshold: float) -> Message:
    """All that reaches the threshold, as it is."""
    return {c: entry for c, entry in enumerate(delta) if abs(entry) >= threshold}


def levels(delta: Vector, bits: float, threshold: float) -> Message:
    """Multiples of max|delta| / 2^(bits - 1), rounded to the nearest, to an even one in doubt."""
    top = 2 ** (int(bits) - 1)
    step = max(abs(entry) for entry in delta) / top
    sent = {}
    for c, entry in enumerate(delta):
        level = max(-top, min(top, round(entry / step))) if step > 0 else 0
        if level != 0 and abs(entry) >= threshold:
            sent[c] = level * step
    return sent


def sign(delta: Vector, _: float, threshold: float) -> Message:
    """The sign of all that reaches the threshold, times the mean of its absolute values."""
    chosen = [c for c, entry in enumerate(delta) if abs(entry) >= threshold]
    size = sum(abs(delta[c]) for c in chosen) / len(chosen) if chosen else 0.0
    return {c: size if delta[c] >= 0 else -size for c in chosen if size > 0}


def top_k(delta: Vector, share: float, threshold: float) -> Message:
    """The k = max(1, round(share n)) largest in absolute value, the first ones in doubt; what is 0 is not sent."""
    k = max(1, round(share * len(delta)))
    largest_first = sorted(range(len(delta)), key=lambda c: (-abs(delta[c]), c))
    return {c: delta[c] for c in sorted(largest_first[:k]) if delta[c] != 0 and abs(delta[c]) >= threshold}


# The size of a message


def bits_of(message: Message, n: int, strategy: Strategy) -> int:
    """A kind, perhaps a count and positions, and numbers; or a scale and levels instead. In whole bytes.

    The positions are the gaps between the coordinates, in the Rice code whose longest possible text is shortest.
    """
    name, parameter = strategy.codec
    sent, width = len(message), strategy.width
    positions = min(sent * (1 + p) + (n - sent) // 2**p for p in range(32))
    if name in ("full", "top-k"):
        some, everything = 48 + positions + sent * width, 8 + n * width
        return whole_bytes(min(some, everything))
    if name == "sign" and sent == n:
        return whole_bytes(8 + width + n)
    return whole_bytes(48 + positions + width + sent * (int(parameter) if name == "levels" else 1))


def whole_bytes(bits: int) -> int:
    return -(-bits // 8) * 8
