# Written by `python docs/reference_pages.py`.
# ruff: noqa: E501, I001
# fmt: off
from collections.abc import Callable, Mapping, Sequence
from numpy.typing import NDArray
from pathlib import Path
from typing import Any, Literal, Protocol

from efhc.base.errors import EfhcError as EfhcError
from efhc.base.errors import InputError as InputError
from efhc.base.policy import Policy as Policy
from efhc.core.graph import Graph as Graph
from efhc.core.local_steps import Adam as Adam
from efhc.core.local_steps import AdamW as AdamW
from efhc.core.local_steps import DriftCorrected as DriftCorrected
from efhc.core.local_steps import HeavyBall as HeavyBall
from efhc.core.local_steps import LocalStep as LocalStep
from efhc.core.local_steps import Nesterov as Nesterov
from efhc.core.local_steps import QuasiGlobalMomentum as QuasiGlobalMomentum
from efhc.core.local_steps import SGD as SGD
from efhc.core.memory import Memory as Memory
from efhc.core.parts import Budget as Budget
from efhc.core.parts import ChosenLinks as ChosenLinks
from efhc.core.parts import EstimatesMixing as EstimatesMixing
from efhc.core.parts import ExchangeMixing as ExchangeMixing
from efhc.core.parts import HalfStepsMixing as HalfStepsMixing
from efhc.core.parts import Moved as Moved
from efhc.core.parts import Now as Now
from efhc.core.parts import Parts as Parts
from efhc.core.parts import Seen as Seen
from efhc.core.parts import Strategy as Strategy
from efhc.core.personal import Ditto as Ditto
from efhc.core.personal import FineTuned as FineTuned
from efhc.core.personal import Personal as Personal
from efhc.core.personal import SharedParameters as SharedParameters
from efhc.core.randomness import Purpose as Purpose
from efhc.core.randomness import Randomness as Randomness
from efhc.core.schedules import Constant as Constant
from efhc.core.schedules import Cosine as Cosine
from efhc.core.schedules import Diminishing as Diminishing
from efhc.core.schedules import SchedulePolicy as SchedulePolicy
from efhc.core.schedules import WarmUp as WarmUp
from efhc.core.step_limits import ClippedSteps as ClippedSteps
from efhc.core.step_limits import NoLimit as NoLimit
from efhc.core.step_limits import StepLimit as StepLimit
from efhc.core.triggers import AlwaysTrigger as AlwaysTrigger
from efhc.core.triggers import Bandwidths as Bandwidths
from efhc.core.triggers import CoinTrigger as CoinTrigger
from efhc.core.triggers import EntrywiseTrigger as EntrywiseTrigger
from efhc.core.triggers import NeverTrigger as NeverTrigger
from efhc.core.triggers import NormTrigger as NormTrigger
from efhc.core.triggers import PeriodTrigger as PeriodTrigger
from efhc.core.triggers import TriggerPolicy as TriggerPolicy
from efhc.drivers.event_driven.churn import ChurnEvent as ChurnEvent
from efhc.drivers.event_driven.churn import ChurnFile as ChurnFile
from efhc.drivers.event_driven.churn import ChurnPolicy as ChurnPolicy
from efhc.drivers.event_driven.churn import ChurnRates as ChurnRates
from efhc.drivers.event_driven.compute import ComputeFile as ComputeFile
from efhc.drivers.event_driven.compute import ComputeTimes as ComputeTimes
from efhc.drivers.event_driven.compute import ConstantCompute as ConstantCompute
from efhc.drivers.event_driven.compute import LognormalCompute as LognormalCompute
from efhc.drivers.event_driven.links import InstantLinks as InstantLinks
from efhc.drivers.event_driven.links import LinkPolicy as LinkPolicy
from efhc.drivers.event_driven.links import PerLink as PerLink
from efhc.drivers.event_driven.links import SharedLinks as SharedLinks
from efhc.drivers.event_driven.rates import ConstantRates as ConstantRates
from efhc.drivers.event_driven.rates import MarkovRates as MarkovRates
from efhc.drivers.event_driven.rates import RateFile as RateFile
from efhc.drivers.event_driven.rates import RatePolicy as RatePolicy
from efhc.drivers.event_driven.transfers import Notice as Notice
from efhc.drivers.observers import ObserverFactory
from efhc.drivers.settings import DriverPolicy as DriverPolicy
from efhc.drivers.settings import EventDriven as EventDriven
from efhc.drivers.settings import LockstepDriver as LockstepDriver
from efhc.experiments.config.early_stopping import EarlyStopping as EarlyStopping
from efhc.experiments.config.experiment import Experiment as Experiment
from efhc.experiments.config.files import load_experiment as load_experiment
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.progress import RunProgress
from efhc.experiments.runs.result import Result as Result
from efhc.experiments.runs.store import Engine
from efhc.experiments.runs.study import Study as Study
from efhc.experiments.trackers.mlflow import MLflow as MLflow
from efhc.experiments.trackers.tensorboard import TensorBoard as TensorBoard
from efhc.experiments.trackers.tracker import Tracker as Tracker
from efhc.experiments.trackers.wandb import WandB as WandB
from efhc.learning.data.dataset import DataPolicy as DataPolicy
from efhc.learning.data.dataset import Dataset as Dataset
from efhc.learning.data.dataset import NpzFile as NpzFile
from efhc.learning.data.huggingface import HuggingFace as HuggingFace
from efhc.learning.data.images import CIFAR10 as CIFAR10
from efhc.learning.data.images import Digits as Digits
from efhc.learning.data.images import FashionMNIST as FashionMNIST
from efhc.learning.data.images import ImageFolder as ImageFolder
from efhc.learning.data.leaf import FEMNIST as FEMNIST
from efhc.learning.data.leaf import Sent140 as Sent140
from efhc.learning.data.leaf import Shakespeare as Shakespeare
from efhc.learning.data.tables import CsvFile as CsvFile
from efhc.learning.data.tables import ParquetFile as ParquetFile
from efhc.learning.initial import InitialModels as InitialModels
from efhc.learning.initial import ModelFile as ModelFile
from efhc.learning.initial import PerDevice as PerDevice
from efhc.learning.initial import Shared as Shared
from efhc.learning.initial import Zeros as Zeros
from efhc.learning.models.linear import LeastSquares as LeastSquares
from efhc.learning.models.linear import LinearModel as LinearModel
from efhc.learning.models.linear import SVM as SVM
from efhc.learning.models.linear import Softmax as Softmax
from efhc.learning.models.modules import LeNet5 as LeNet5
from efhc.learning.models.modules import MLP as MLP
from efhc.learning.models.modules import Module as Module
from efhc.learning.models.modules import ModuleModel as ModuleModel
from efhc.learning.models.modules import ResNet18 as ResNet18
from efhc.learning.partition import Dirichlet as Dirichlet
from efhc.learning.partition import Groups as Groups
from efhc.learning.partition import IID as IID
from efhc.learning.partition import IndexFile as IndexFile
from efhc.learning.partition import LabelsPerDevice as LabelsPerDevice
from efhc.learning.partition import Partition as Partition
from efhc.learning.partition import Quantities as Quantities
from efhc.learning.partition import Shards as Shards
from efhc.learning.partition import Writers as Writers
from efhc.network.bandwidths import BandwidthFile as BandwidthFile
from efhc.network.bandwidths import BandwidthPolicy as BandwidthPolicy
from efhc.network.bandwidths import BetaBandwidth as BetaBandwidth
from efhc.network.bandwidths import ConstantBandwidth as ConstantBandwidth
from efhc.network.bandwidths import GivenBandwidths as GivenBandwidths
from efhc.network.bandwidths import UniformBandwidth as UniformBandwidth
from efhc.network.changing import RandomLinks as RandomLinks
from efhc.network.changing import RandomWaypoint as RandomWaypoint
from efhc.network.changing import Rotating as Rotating
from efhc.network.graph_sequences import BaseGraph as BaseGraph
from efhc.network.graph_sequences import OnePeerExponential as OnePeerExponential
from efhc.network.graph_sequences import RandomPeers as RandomPeers
from efhc.network.sparse_graphs import Dumbbell as Dumbbell
from efhc.network.sparse_graphs import Exponential as Exponential
from efhc.network.sparse_graphs import RandomRegular as RandomRegular
from efhc.network.sparse_graphs import SmallWorld as SmallWorld
from efhc.network.topologies import Complete as Complete
from efhc.network.topologies import EdgeListFile as EdgeListFile
from efhc.network.topologies import EdgeSequenceFile as EdgeSequenceFile
from efhc.network.topologies import ErdosRenyi as ErdosRenyi
from efhc.network.topologies import Geometric as Geometric
from efhc.network.topologies import GivenLinks as GivenLinks
from efhc.network.topologies import GraphMLFile as GraphMLFile
from efhc.network.topologies import Grid as Grid
from efhc.network.topologies import InternetAS as InternetAS
from efhc.network.topologies import Network as Network
from efhc.network.topologies import Ring as Ring
from efhc.network.topologies import Star as Star
from efhc.network.topologies import Topology as Topology
from efhc.strategies.composed import Composed as Composed
from efhc.strategies.estimating import ChocoSGD as ChocoSGD
from efhc.strategies.estimating import ExactDiffusion as ExactDiffusion
from efhc.strategies.estimating import SparqSGD as SparqSGD
from efhc.strategies.half_steps import Entrywise as Entrywise
from efhc.strategies.half_steps import OneWay as OneWay
from efhc.strategies.half_steps import Paced as Paced
from efhc.strategies.matcha import Matcha as Matcha
from efhc.strategies.paper import EventTriggered as EventTriggered
from efhc.strategies.paper import GlobalThreshold as GlobalThreshold
from efhc.strategies.paper import Never as Never
from efhc.strategies.paper import PeriodicBroadcast as PeriodicBroadcast
from efhc.strategies.paper import RandomizedGossip as RandomizedGossip
from efhc.strategies.paper import ZeroThreshold as ZeroThreshold
from efhc.strategies.parts.codecs import CodecPolicy as CodecPolicy
from efhc.strategies.parts.codecs import FullCodec as FullCodec
from efhc.strategies.parts.codecs import LevelsCodec as LevelsCodec
from efhc.strategies.parts.codecs import SignCodec as SignCodec
from efhc.strategies.parts.codecs import TopKCodec as TopKCodec
from efhc.strategies.parts.link_choices import AllLinks as AllLinks
from efhc.strategies.parts.link_choices import BandwidthLinks as BandwidthLinks
from efhc.strategies.parts.link_choices import LinksPolicy as LinksPolicy
from efhc.strategies.parts.link_choices import MatchaLinks as MatchaLinks
from efhc.strategies.parts.link_choices import SampledLinks as SampledLinks
from efhc.strategies.parts.link_choices import TreeLinks as TreeLinks
from efhc.strategies.whole import Beer as Beer
from efhc.strategies.whole import CentralSGD as CentralSGD
from efhc.strategies.whole import GradientTracking as GradientTracking
from efhc.strategies.whole import RelaySGD as RelaySGD

__version__: str
__all__: list[str]

class _HasBuild(Protocol):
    @property
    def build(self) -> Any: ...

class _HasDraw(Protocol):
    @property
    def draw(self) -> Any: ...

class _HasEdges(Protocol):
    @property
    def edges(self) -> Any: ...

class _HasFires(Protocol):
    @property
    def fires(self) -> Any: ...

class _HasLoad(Protocol):
    @property
    def load(self) -> Any: ...

class _HasLossAndGradient(Protocol):
    @property
    def loss_and_gradient(self) -> Any: ...

class _HasModels(Protocol):
    @property
    def models(self) -> Any: ...

class _HasOpen(Protocol):
    @property
    def open(self) -> Any: ...

class _HasOverTime(Protocol):
    @property
    def over_time(self) -> Any: ...

class _HasParts(Protocol):
    @property
    def parts(self) -> Any: ...

class _HasSplit(Protocol):
    @property
    def split(self) -> Any: ...

class _HasStep(Protocol):
    @property
    def step(self) -> Any: ...

class _HasThresholds(Protocol):
    @property
    def thresholds(self) -> Any: ...

def simulate(
    experiment: Experiment | None = None,
    *,
    out: Path | str | None = ...,
    resume: bool = ...,
    store: Path | str | None = ...,
    engine: Engine | None = ...,
    jobs: int | None = ...,
    progress: RunProgress | None = ...,
    observers: ObserverFactory | None = ...,
    followers: FollowerFactory | Sequence[FollowerFactory] = ...,
    checkpoint_seconds: float = ...,
    warn: Callable[[str], None] = ...,
    name: str = ...,
    devices: int = ...,
    iterations: int = ...,
    seeds: int | Sequence[int] = ...,
    batch_size: int | Literal["full"] = ...,
    evaluate_every: int = ...,
    evaluate_at: Literal["drawn", "multiples", "budgets"] = ...,
    budgets: float | Sequence[float] = ...,
    test_samples: int | None = ...,
    validation: float | None = ...,
    keep_models_every: int | None = ...,
    precision: Literal["float32", "float64"] = ...,
    backend: Literal["auto", "linear", "arrays", "compiled", "stacked", "loop"] = ...,
    device: str = ...,
    early_stopping: EarlyStopping | Mapping[str, Any] | None = ...,
    exchange_at_start: bool = ...,
    data: DataPolicy | str | Mapping[str, Any] | Literal["digits", "fashion-mnist", "cifar-10", "image-folder", "npz", "huggingface", "femnist", "sent140", "shakespeare", "csv", "parquet"] | _HasLoad = ...,
    partition: Partition | str | Mapping[str, Any] | Literal["iid", "labels", "dirichlet", "groups", "writers", "shards", "quantities", "file"] | _HasSplit = ...,
    model: LinearModel | ModuleModel | str | Mapping[str, Any] | Literal["svm", "softmax", "least-squares", "lenet5", "resnet18", "mlp", "module"] | _HasLossAndGradient | _HasBuild | Callable[..., Any] = ...,
    initial_models: InitialModels | str | Mapping[str, Any] | Literal["per-device", "shared", "zeros", "npy"] | _HasModels = ...,
    network: Network | str | Mapping[str, Any] | Literal["geometric", "erdos-renyi", "internet-as", "ring", "grid", "star", "complete", "links", "edge-list", "graphml", "edge-sequence", "random-links", "rotating", "waypoint", "one-peer-exponential", "random-peers", "base-graph", "exponential", "random-regular", "small-world", "dumbbell"] | _HasOverTime | _HasEdges = ...,
    bandwidths: BandwidthPolicy | str | Mapping[str, Any] | Literal["constant", "uniform", "beta", "list", "csv"] | _HasDraw | Sequence[float] | NDArray[Any] = ...,
    step_size: SchedulePolicy | str | Mapping[str, Any] | Literal["constant", "diminishing", "warm-up", "cosine"] | Callable[..., Any] = ...,
    threshold_decay: SchedulePolicy | str | Mapping[str, Any] | Literal["constant", "diminishing", "warm-up", "cosine"] | Callable[..., Any] | None = ...,
    strategies: Mapping[str, Strategy | str | Mapping[str, Any] | Literal["ef-hc", "gt", "zt", "rg", "never", "periodic", "composed", "choco", "sparq", "d2", "one-way", "entrywise", "paced", "matcha", "central", "dsgt", "beer", "relay"] | _HasThresholds | _HasFires | _HasParts | _HasStep] = ...,
    driver: DriverPolicy | str | Mapping[str, Any] | Literal["lockstep", "event-driven"] = ...,
    measure: str | None = ...,
    log: Tracker | str | Mapping[str, Any] | Literal["mlflow", "tensorboard", "wandb"] | _HasOpen | Sequence[Tracker | str | Mapping[str, Any] | Literal["mlflow", "tensorboard", "wandb"] | _HasOpen] = ...,
) -> Result:
    """Run an experiment, given as one object or by its fields: `simulate(devices=20, network=Ring())`.

    Parameters
    ----------
    experiment
        The experiment. `fields` change it; without it they change the defaults.
    out
        The run directory to keep the result in. Default: the result is in memory only.
    resume
        Go on with the run that was stopped in `out`. On the same machine with the same packages, the result is bit for
        bit what it would have been. Without a run in `out`, a new one is begun.
    store
        A folder of runs. Runs that are there are not made again, and those that are made stay there.
        Default: the folder `runs` within `out`.
    engine
        Where runs are made, with its own number of cores. Default: `jobs` cores of this machine.
    jobs
        The number of cores to use. Default: all.
    progress
        Called with strategy, seed and number of iterations done; of an event-driven run, that share of `iterations`.
        Default: a notebook shows a bar if runs take longer than two seconds.
    observers
        Creates an observer for every run: see `efhc.drivers.observers`. For the driver `lockstep` only.
    followers
        Creates a reader of the events of every run, such as a `Follower`: see `efhc.experiments.runs.events`. One
        factory, or several.
    checkpoint_seconds
        The time between two checkpoints of the default engine.
    warn
        Called with one line about each problem that does not stop the experiment.
    name
        What the experiment is called in figures and tables. Default in a file: the file's name without its ending.
    devices
        Number of devices m.
    iterations
        Number of iterations K; the run makes iterations 0 to K-1.
    seeds
        One independent draw of everything per seed. A single number is one seed.
    batch_size
        Number of samples per device and iteration, or "full" for all samples of the device.
    evaluate_every
        Length, in iterations, of each window in which models are evaluated once. They are also evaluated after the first iteration and after the last.
    evaluate_at
        When models are evaluated: after an iteration in each window of `evaluate_every` that is drawn by the seed ("drawn"), also whenever one of the `budgets` is spent ("budgets"), or after each multiple of `evaluate_every` ("multiples"), which meets a strategy that communicates at multiples of a number always in the same state.
    budgets
        Shares of ZT's total transmission time at which models are evaluated with evaluate_at = "budgets".
    test_samples
        Number of test samples for accuracy, spread evenly over the test set. Default: all.
    validation
        Share of each device's training samples that is set aside, by which `efhc tune` chooses. Default: none.
    keep_models_every
        Keep all models after each multiple of this number of iterations, at the start and at the end. Default: the final models only.
    precision
        Floating-point type of models and gradients.
    backend
        How gradients are computed: compiled loops ("linear", "compiled"), NumPy ("arrays"), or torch for all devices at once ("stacked") or one after the other ("loop"). "auto" takes the fastest, which meta.json of a run names.
    device
        Where torch computes: "cpu", "cuda" or "cuda:1".
    early_stopping
        Ends a run after `patience` evaluations in a row in which `measure` does not exceed the best so far by more than `least_gain`: `{ measure = "own_accuracy", patience = 10, least_gain = 0.001 }`. Default: no run ends early.
    exchange_at_start
        Whether the links of iteration 0 count as new, so that all neighbours exchange models (Event 1).
    data
        The training and test samples.
    partition
        Which training samples each device holds.
    model
        What every device trains.
    initial_models
        The models w_i(0) that the devices start from.
    network
        Which devices are linked at each iteration.
    bandwidths
        The bandwidths b_i of the devices' links.
    step_size
        The step size alpha(k).
    threshold_decay
        The threshold decay gamma(k). Default: the step size alpha(k).
    strategies
        The strategies to compare, by the name that figures and tables show.
    driver
        Whether devices step together, or on their own clocks.
    measure
        The measure that tables, figures, tunings and claims go by: "accuracy" on the global test set, "own_accuracy" on each device's own distribution, "loss", "accuracy_min", ... It does not determine results. Default: "accuracy", or the first metric of an objective without it.
    log
        Trackers that get the runs while they are made. It does not determine results.

    Returns
    -------
    Result
        A run that fails, because training diverges, is listed in `Result.failed`, and the others are not affected.

    Raises
    ------
    EfhcError
        If a setting cannot be used, or if every run fails.
    """
