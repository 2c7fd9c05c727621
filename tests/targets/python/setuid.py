"""Becomes another user after a second of CPU time, and has what it calls from then on in a perf map that is that user's.

    python3.13 setuid.py UID [SECONDS]
"""

import os
import sys
import time


def burn(n):
    x = 88172645
    for i in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
    return x


def as_root(end):
    while time.process_time() < end:
        burn(4000)


def as_other(end):
    while time.process_time() < end:
        burn(4000)


def main(user, seconds):
    as_root(1)
    os.setuid(user)
    sys.activate_stack_trampoline("perf")
    as_other(seconds)


print(f"ready pid={os.getpid()}", flush=True)
main(int(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else 4)
