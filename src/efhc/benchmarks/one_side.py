"""Makes rounds of one workload when told so: a line on standard input is a round, a line of JSON its seconds.

`efhc bench --against` starts this file once for each of two checkouts, each with its own `efhc`. So it uses only what
the older of the two has as well.
"""

from __future__ import annotations

import json
import sys
import time

from threadpoolctl import threadpool_limits

from efhc.benchmarks.workloads import WORKLOADS


def main(name: str) -> None:
    """Warm up, say so by an empty line, and make a round for every line that comes."""
    workload = WORKLOADS[name]
    with threadpool_limits(1, "blas"):
        # Not `ours()` alone: that of an older checkout makes iterations only.
        side = workload._our_evaluation() if workload.measures == "evaluation" else workload.ours()
        side()
        print(flush=True)  # noqa: T201
        for _ in sys.stdin:
            started, used = time.perf_counter(), time.process_time()
            iterations = side()
            wall, processor = time.perf_counter() - started, time.process_time() - used
            print(json.dumps([wall / iterations, processor / iterations]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
