"""Spoils the list of its own frames while it burns CPU: whoever walks it goes astray.

    python3.13 spoiled.py MODE [SECONDS]

MODE is `circle` (a frame is its own caller) or `anywhere` (its caller lies where nothing is mapped). The list is mended
before the interpreter uses it again.
"""

import ctypes
import os
import sys
import time

WORD = ctypes.c_uint64
NUMBERS = range(1_000_000)


def offsets():
    """Where a thread's state has its frame, and a frame its caller, as the runtime says it to debuggers."""
    words = (WORD * 64).in_dll(ctypes.pythonapi, "_PyRuntime")
    minor = sys.version_info.minor
    if bytes(words)[:8] != b"xdebugpy" or minor < 13:
        sys.exit("this CPython does not say its offsets")
    thread = 16 if minor == 13 else 19
    frame = thread + 9 + (8 if minor >= 15 else 0)
    return words[3 + thread + 4], words[3 + frame + 1]


def burn_spoiled(mode, thread, to_frame, to_previous):
    frame = WORD.from_address(thread + to_frame).value
    previous = WORD.from_address(frame + to_previous)
    kept = previous.value
    previous.value = frame if mode == "circle" else 0xDEAD0000000
    total = sum(NUMBERS)
    previous.value = kept
    return total


def main(mode, seconds):
    ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
    thread = ctypes.pythonapi.PyThreadState_Get()
    to_frame, to_previous = offsets()
    end = time.process_time() + seconds
    while time.process_time() < end:
        burn_spoiled(mode, thread, to_frame, to_previous)


print(f"ready pid={os.getpid()}", flush=True)
main(sys.argv[1], float(sys.argv[2]) if sys.argv[2:] else 4)
