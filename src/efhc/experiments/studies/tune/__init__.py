"""Tuning: the values of a strategy's parameters that reach the best accuracy within a communication budget.

A tuning chooses by the accuracy on validation samples, a share of the training samples that no device trains on. The
test samples are used once, at the end, to measure the winner. (`on="test"` chooses by the test accuracy instead, which
makes the winner's accuracy too good to quote.)

The folder of a tuning:

optuna.journal   the finished trials, as Optuna keeps them
runs/            every run, named by its key
trials.csv       one row per trial
tuned.toml       the complete config with the best values, and without a validation split
test.csv         the winner's accuracy on the test samples, one row per seed
tuning.png/.pdf  accuracy against each tuned parameter

The next values follow from the finished trials alone, and a trial is recorded in one step, when it is finished. So a
tuning that is killed at any moment and started again ends with the same files, byte for byte.
"""

from efhc.experiments.studies.tune.budget import TuningBudget
from efhc.experiments.studies.tune.parameters import Range, read_ranges
from efhc.experiments.studies.tune.search import Search
from efhc.experiments.studies.tune.tuning import FIGURES, TUNED, Tuning, tune

__all__ = ["FIGURES", "TUNED", "Range", "Search", "Tuning", "TuningBudget", "read_ranges", "tune"]
