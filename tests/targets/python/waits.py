"""Waits for ever: the main thread below three functions, another one for a lock, and one in a sort's comparison."""

import os
import threading

held = threading.Lock()
held.acquire()
asleep = threading.Event()


def holds():
    asleep.wait()


def begins():
    holds()


class Taker:
    def takes(self):
        held.acquire()


def compares(value):
    asleep.wait()
    return value


def sorts():
    # The interpreter's loop runs below a C function, and begins once more.
    sorted([2, 1], key=compares)


threads = [threading.Thread(target=target, daemon=True) for target in (Taker().takes, sorts)]
for thread in threads:
    thread.start()
print(f"ready pid={os.getpid()} taker={threads[0].native_id} sorter={threads[1].native_id}", flush=True)
begins()
