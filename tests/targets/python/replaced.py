"""Code that is freed, with other code at its place: each of the callers calls what was made for it alone

    python3 replaced.py [SECONDS]

In every second second it is freed after its call, and what is made next has its place and the same instructions.
"""

import os
import sys
import time
import types


def template():
    i = 0
    while i < 100_000:
        i += 1


def caller_a(function):
    function()


def caller_b(function):
    function()


def made(name):
    return types.FunctionType(template.__code__.replace(co_name=name, co_qualname=name), globals())


def main(seconds):
    kept = [made("made_a"), made("made_b")]
    start = time.monotonic()
    while (since := time.monotonic() - start) < seconds:
        if int(since) % 2:
            caller_a(made("made_a"))
            caller_b(made("made_b"))
        else:
            caller_a(kept[0])
            caller_b(kept[1])


print(f"ready pid={os.getpid()}", flush=True)
main(float(sys.argv[1]) if len(sys.argv) > 1 else 1e9)
