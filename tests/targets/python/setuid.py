"""Becomes another user after a second of CPU time, and has what it calls from then on in a perf map that is that user's.

    python3.13 setuid.py UID [SECONDS [exec]]

With `exec` it executes itself three seconds later, as that user, and goes on in the same map.
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


def executed(end):
    while time.process_time() < end:
        burn(4000)


def execute(home, source, seconds):
    """The other user may reach neither the interpreter nor this file by their paths: all is had from what is open."""
    place = f"/proc/self/fd/{home}"
    environment = dict(os.environ, PYTHONHOME=place, LD_LIBRARY_PATH=f"{place}/lib")
    os.set_inheritable(home, True)
    os.execve("/proc/self/exe", [sys.executable, "-X", "perf", "-c", source, str(seconds)], environment)


def main(user, seconds, executes):
    home = os.open(sys.base_prefix, os.O_PATH | os.O_DIRECTORY)
    with open(__file__) as file:
        source = file.read()
    as_root(1)
    os.setuid(user)
    sys.activate_stack_trampoline("perf")
    as_other(4 if executes else seconds)
    if executes:
        execute(home, source, seconds)


if sys.argv[0] == "-c":
    executed(float(sys.argv[1]))
else:
    print(f"ready pid={os.getpid()}", flush=True)
    main(int(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else 4, "exec" in sys.argv[3:])
