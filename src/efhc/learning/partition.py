"""Which training samples each device holds: one array of indices per device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Ints
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, read_json
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.randomness import Purpose, Randomness
from efhc.learning.data.dataset import Dataset


class Partition(Policy, ABC):
    """A partition that a config can name."""

    own_by: ClassVar[Literal["label", "group", "nothing"]] = "label"
    """What the samples of devices differ in: their labels, whole groups, or nothing but chance. It says which test
    samples are like a device's own (`learning.own_distribution`)."""

    @abstractmethod
    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        """The numbers of each device's training samples."""


def set_aside(parts: list[Ints], share: float, randomness: Randomness) -> tuple[list[Ints], list[Ints]]:
    """Return the training samples of each device, and those that are set aside from it for validation.

    Each device sets aside `share` of its samples, rounded: at least one if it has two, and never all. The choice is
    random. A sample that is set aside is no training sample of any device, even if several devices hold it.
    """
    aside: list[Ints] = []
    taken = np.zeros(max(int(part.max()) for part in parts) + 1, dtype=bool)
    for device, part in enumerate(parts):
        free = np.sort(part[~taken[part]])
        count = min(max(math.floor(share * len(part) + 0.5), 1), len(free) - 1) if len(free) else 0
        aside.append(randomness.stream(Purpose.VALIDATION, device).permutation(free)[:count])
        taken[aside[-1]] = True
    kept = [part[~taken[part]] for part in parts]
    if not taken.any() or not all(map(len, kept)):
        empty = "no sample at all" if not taken.any() else f"all samples of device {list(map(len, kept)).index(0)}"
        allowed = "devices with two samples of their own, to set one aside"
        raise InputError("validation", f"{share:g}, which sets aside {empty}", allowed)
    return kept, aside


def _classes_of(data: Dataset, kind: str) -> Ints:
    """Return the class of each training sample. Raises `InputError` if labels are no classes."""
    if not data.has_classes:
        given = f"{kind}, because the labels of {data.name} are {data.label_words}"
        raise InputError("kind", given, "iid, quantities, groups (of data with groups), file, or shards for numbers")
    return data.y_train


class IID(Partition):
    """All samples shuffled and cut into equal parts (to within one sample)."""

    own_by = "nothing"
    kind: Literal["iid"] = "iid"

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        if devices > (samples := len(data.y_train)):
            given = f"a partition that leaves device {samples} without samples"
            raise InputError("kind", given, f"at most {samples} devices, one per sample")
        shuffled = randomness.stream(Purpose.PARTITION).permutation(len(data.y_train))
        return np.array_split(shuffled, devices)


class LabelsPerDevice(Partition):
    """Each device has samples of a few labels only; devices that share a label get disjoint samples of it.

    Labels are dealt in turn in one random order: each is held by equally many devices, to within one.
    """

    kind: Literal["labels"] = "labels"
    labels_per_device: int = Field(default=1, ge=1)
    """Number of labels that each device holds samples of."""

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        labels, classes = _classes_of(data, self.kind), data.classes
        if self.labels_per_device > classes:
            raise InputError("labels_per_device", self.labels_per_device, f"at most {classes}, the number of classes")
        order = randomness.stream(Purpose.PARTITION).permutation(classes)
        dealt = order[np.arange(devices * self.labels_per_device) % classes].reshape(devices, -1)
        parts: list[list[Ints]] = [[] for _ in range(devices)]
        for label in range(classes):
            holders = np.flatnonzero((dealt == label).any(axis=1))
            if len(holders):
                samples = randomness.stream(Purpose.PARTITION, label).permutation(np.flatnonzero(labels == label))
                if len(samples) < len(holders):
                    raise InputError(
                        "labels_per_device",
                        f"{self.labels_per_device}: {len(holders)} devices hold label {label}, "
                        f"with {len(samples)} samples",
                        "fewer devices, or a sample of its labels for every device",
                    )
                for holder, share in zip(holders, np.array_split(samples, len(holders)), strict=True):
                    parts[holder].append(share)
        return [np.concatenate(part) for part in parts]


class Dirichlet(Partition):
    """For each label, the devices' shares of its samples are Dirichlet(a, ..., a); a small a is far from IID."""

    kind: Literal["dirichlet"] = "dirichlet"
    concentration: float = Field(default=0.5, gt=0)
    """The parameter a of the Dirichlet distribution."""
    attempts: int = Field(default=100, ge=1)
    """Largest number of draws until every device has a sample."""

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        labels, classes = _classes_of(data, self.kind), data.classes
        for attempt in range(self.attempts):
            stream = randomness.stream(Purpose.PARTITION, attempt)
            parts: list[list[Ints]] = [[] for _ in range(devices)]
            for label in range(classes):
                samples = stream.permutation(np.flatnonzero(labels == label))
                shares = stream.dirichlet(np.full(devices, self.concentration))
                cuts = np.round(np.cumsum(shares)[:-1] * len(samples)).astype(int)
                for device, share in enumerate(np.split(samples, cuts)):
                    parts[device].append(share)
            joined = [np.concatenate(part) for part in parts]
            if all(map(len, joined)):
                return joined
        raise InputError(
            "concentration",
            f"{self.concentration}, which left a device without samples in each of {self.attempts} draws",
            "a larger concentration, fewer devices, or more attempts",
        )


class Groups(Partition):
    """Each device has all samples of some groups, dealt at random, equally many to within one.

    A group is a writer, a user, a hospital, ...
    """

    own_by = "group"
    kind: Literal["groups"] = "groups"

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        if data.groups is None:
            given = f"{self.kind}, because {data.name} has no groups"
            allowed = "data with groups (femnist, a group column of a table, groups in an .npz), or another partition"
            raise InputError("kind", given, allowed)
        groups = np.unique(data.groups)
        if len(groups) < devices:
            raise InputError("kind", f"{len(groups)} {self.kind} for {devices} devices", "one or more per device")
        shuffled = randomness.stream(Purpose.PARTITION).permutation(groups)
        holders = np.repeat(np.arange(devices), [len(dealt) for dealt in np.array_split(shuffled, devices)])
        holder_of = holders[np.argsort(shuffled)]  # of each group, in the order of `groups`
        holder = holder_of[np.searchsorted(groups, data.groups)]
        order = np.argsort(holder, kind="stable")  # ascending within a device
        return np.split(order, np.searchsorted(holder[order], np.arange(1, devices)))


class Writers(Groups):
    """The same as `groups`, for data whose groups are writers."""

    kind: Literal["writers"] = "writers"  # type: ignore[assignment]


class Shards(Partition):
    """The pathological partition of McMahan et al. 2017: few labels per device.

    All samples, sorted by label (in a random order within a label; labels may be numbers), are cut into m s equal
    shards, and each of the m devices gets s = `shards_per_device` of them at random.
    """

    kind: Literal["shards"] = "shards"
    shards_per_device: int = Field(default=2, ge=1)
    """Number of shards s that each device gets."""

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        labels = data.y_train if data.y_train.ndim == 1 else _classes_of(data, self.kind)
        samples, shards = len(labels), devices * self.shards_per_device
        if shards > samples:
            given = f"{self.shards_per_device}: {shards} shards of {samples} samples"
            raise InputError("shards_per_device", given, "fewer shards or devices, so that no shard is empty")
        stream = randomness.stream(Purpose.PARTITION)
        shuffled = stream.permutation(samples)
        cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], shards)
        chosen = stream.permutation(shards).reshape(devices, self.shards_per_device)
        return [np.concatenate([cut[shard] for shard in of_device]) for of_device in chosen]


class Quantities(Partition):
    """Devices hold unequal numbers of samples with the same distribution of labels (quantity skew).

    All n samples are shuffled, and device i of m gets

        n_i = minimum + (n - m minimum) q_i,    (q_1, ..., q_m) ~ Dirichlet(a, ..., a),

    rounded so that all n are given out. A small a makes the numbers more unequal.
    """

    own_by = "nothing"
    kind: Literal["quantities"] = "quantities"
    concentration: float = Field(default=0.5, gt=0)
    """The parameter a of the Dirichlet distribution."""
    minimum: int = Field(default=16, ge=1)
    """Least number of samples of a device; at least `batch_size`."""

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        samples = len(data.y_train)
        spare = samples - devices * self.minimum
        if spare < 0:
            given = f"{self.minimum} for each of {devices} devices, with {samples} samples in all"
            raise InputError("minimum", given, f"a smaller minimum, or at most {samples // self.minimum} devices")
        stream = randomness.stream(Purpose.PARTITION)
        shuffled = stream.permutation(samples)
        q = stream.dirichlet(np.full(devices, self.concentration))
        cuts = np.rint(spare * np.cumsum(q)[:-1]).astype(int) + self.minimum * np.arange(1, devices)
        return np.split(shuffled, cuts)


class IndexFile(Partition):
    """A JSON file with one list of training-sample numbers per device, `[[0, 5, 7], [1, 2], ...]`."""

    kind: Literal["file"] = "file"
    path: InputFile
    """The file."""

    def split(self, data: Dataset, devices: int, randomness: Randomness) -> list[Ints]:
        allowed = f"a JSON list of {devices} non-empty lists of sample numbers, 0 to {len(data.y_train) - 1}"
        lists = read_json(self.path, allowed)
        if not isinstance(lists, list) or len(lists) != devices:
            given = f"{len(lists)} entries" if isinstance(lists, list) else type(lists).__name__
            raise InputError("path", f"{given} in {self.path}", allowed)
        for device, indices in enumerate(lists):
            if not isinstance(indices, list) or not indices:
                raise InputError("path", f"{self.path}, which has no samples for device {device}", allowed)
            for index in indices:
                if type(index) is not int or not 0 <= index < len(data.y_train):
                    raise InputError("path", f"sample {index!r} for device {device} in {self.path}", allowed)
            if len(set(indices)) < len(indices):
                raise InputError("path", f"a sample twice for device {device} in {self.path}", allowed)
        return [np.array(indices, dtype=np.int64) for indices in lists]


PARTITIONS = Family(Partition, (__name__,), ("split",), default="labels")
AnyPartition = Annotated[Partition, PARTITIONS]
