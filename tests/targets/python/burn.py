"""outer -> middle -> leaf_hot (75 %), outer -> side_cold -> leaf_cold (25 %)

    python3.13 -X perf_jit burn.py [SECONDS]      writes /tmp/jit-PID.dump
    python3.13 -X perf burn.py [SECONDS]          writes /tmp/perf-PID.map

SECONDS are of CPU time, 4 if they are not given. CPython writes the dump through a stdio buffer: the names of these
functions reach the file at exit, not before. With --flush, 64 further functions are announced before the loop and push
them out.
"""

import os
import sys
import time


def leaf_hot(n):
    x = 88172645
    for i in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
    return x


def leaf_cold(n):
    x = 12345678
    for i in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
    return x


def middle(n):
    r = leaf_hot(n * 3)
    return r + 1


def side_cold(n):
    r = leaf_cold(n)
    return r + 1


def outer(n):
    return middle(n) ^ side_cold(n)


def push_out():
    """About 16 KiB of records: four times the buffer."""
    for i in range(64):
        name = f"pad_{i}_{'x' * 40}"
        space = {}
        exec(f"def {name}(): pass", space)
        space[name]()


def main(seconds):
    end = time.process_time() + seconds
    calls = 0
    noise = 1
    while time.process_time() < end:
        # A tenth to nineteen tenths of 2000, at random: calls of similar length fall into step with a profiler's clock.
        noise = (noise * 1103515245 + 12345) & 0x7FFFFFFF
        outer(200 + (noise >> 8) % 3601)
        calls += 1
    print("calls", calls)


arguments = [a for a in sys.argv[1:] if a != "--flush"]
outer(10)
if "--flush" in sys.argv:
    push_out()
print(f"ready pid={os.getpid()}", flush=True)
main(float(arguments[0]) if arguments else 4)
