"""outer -> middle -> leaf_hot (75 %), outer -> side_cold -> spin (25 %), compiled by numba (LLVM, no frame pointers).

    pip install numba
    NUMBA_ENABLE_PROFILING=1 python burn.py [SECONDS]

With NUMBA_ENABLE_PROFILING=1, LLVM announces through ITT's module events (INTEL_LIBITTNOTIFY64), or, with
INTEL_JIT_BACKWARD_COMPATIBILITY=1, through the JIT profiling API (INTEL_JIT_PROFILER64).
"""

import os
import random
import sys
import time

from numba import int64, njit


# What is compiled for a debugger LLVM inlines into nothing.
@njit(int64(int64), debug=True)
def leaf_hot(n):
    x = 88172645463325252
    for _ in range(n):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    return x


@njit(int64(int64), debug=True)
def spin(n):
    x = 88172645463325252
    for _ in range(n):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    return x


@njit(int64(int64))
def middle(n):
    return leaf_hot(300 * n) + 1


@njit(int64(int64))
def side_cold(n):
    return spin(100 * n) + 1


@njit(int64(int64))
def outer(n):
    return middle(n) + side_cold(n)


print(f"ready pid={os.getpid()}", flush=True)
end = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 4)
calls = 0
random.seed(1)
while time.monotonic() < end:
    # A tenth to nineteen tenths, at random: calls of similar length fall into step with a profiler's clock.
    outer(random.randint(200, 3800))
    calls += 1
print("calls", calls)
