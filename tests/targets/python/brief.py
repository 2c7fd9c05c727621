# Children that live for less than it takes to look at them, one after the other, as servers have that renew their workers.
import os
import sys
import time


def leaf(count):
    total = 0
    for number in range(count):
        total += number * number % 7
    return total


def task(until):
    while time.monotonic() < until:
        leaf(2000)


def main(seconds):
    end = time.monotonic() + seconds
    print(f"ready pid={os.getpid()}", flush=True)
    # It is looked at before it has any.
    while time.monotonic() < end:
        leaf(2000)
        child = os.fork()
        if child == 0:
            task(time.monotonic() + 0.06)
            os._exit(0)
        os.waitpid(child, 0)


main(float(sys.argv[1]))
