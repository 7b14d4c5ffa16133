"""Prints the processor seconds per iteration of one workload, of the efhc that PYTHONPATH names.

`python -m benchmarks --against DIR` starts this file for each of two checkouts. It uses only what older ones have too.
"""

from __future__ import annotations

import sys
import time

from threadpoolctl import threadpool_limits

try:
    from benchmarks.workloads import WORKLOADS
except ImportError:  # efhc 0.2 and older
    from efhc.benchmarks.workloads import WORKLOADS

CALLS = 5

with threadpool_limits(1, "blas"):
    work = WORKLOADS[sys.argv[1]].ours()
    work()
    started = time.process_time()
    iterations = sum(work() for _ in range(CALLS))
    print((time.process_time() - started) / iterations)
