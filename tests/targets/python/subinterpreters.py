"""The known program in another interpreter, whose frames stand above those of the one that has called it.

    python3.13 subinterpreters.py [SECONDS]

    <module> -> serve -> (the other interpreter) -> <module> -> main -> outer
        outer -> middle -> leaf_hot (75 %)
        outer -> through_c -> (sorted, in C) -> by_c -> leaf_cold (25 %)

SECONDS are of CPU time, 4 if they are not given.
"""

import os
import sys

try:
    import _interpreters as interpreters
except ImportError:
    # Up to 3.12.
    import _xxsubinterpreters as interpreters

PROGRAM = """
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

def by_c(n):
    r = leaf_cold(n)
    return r + 1

def through_c(n):
    return sorted([n], key=by_c)[0]

def outer(n):
    return middle(n) ^ through_c(n)

def main(seconds):
    end = time.process_time() + seconds
    noise = 1
    while time.process_time() < end:
        # A tenth to nineteen tenths of 2000, at random: calls of similar length fall into step with a profiler's clock.
        noise = (noise * 1103515245 + 12345) & 0x7FFFFFFF
        outer(200 + (noise >> 8) % 3601)

print("ready pid=@PID@ minor=@MINOR@", flush=True)
main(@SECONDS@)
"""


def serve(seconds):
    other = interpreters.create()
    values = {"@PID@": os.getpid(), "@MINOR@": sys.version_info.minor, "@SECONDS@": seconds}
    program = PROGRAM
    for name, value in values.items():
        program = program.replace(name, str(value))
    failed = interpreters.run_string(other, program)
    if failed is not None:
        sys.exit(str(failed))


serve(float(sys.argv[1]) if sys.argv[1:] else 4)
