"""Burns CPU behind 900 functions of Python, all of which run in one loop of the interpreter.

    python3.13 deep.py [SECONDS [DEPTH]]

    main -> down -> ... -> down, 900 of them, or DEPTH, -> leaf_deep
"""

import os
import sys
import time


def leaf_deep(end):
    x = 88172645
    while time.process_time() < end:
        for _ in range(10000):
            x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    return x


def down(depth, end):
    return leaf_deep(end) if depth == 1 else down(depth - 1, end)


def main(seconds, depth):
    return down(depth, time.process_time() + seconds)


sys.setrecursionlimit(5000)
print(f"ready pid={os.getpid()}", flush=True)
main(float(sys.argv[1]) if sys.argv[1:] else 4, int(sys.argv[2]) if sys.argv[2:] else 900)
