"""Two workers that run burn.py's functions, as gunicorn's and multiprocessing's do: they are forked, not started. Their
outer frames are those in which their parent forked them. The parent sleeps.

    python3.13 -X perf_jit prefork.py [SECONDS]

After a fork CPython ends the dump and the map that it has inherited, and begins new ones under the child's number.
"""

import os
import sys
import time

# What burn.py says when it is imported is its own.
sys.argv, arguments = [sys.argv[0], "0"], sys.argv[1:]
SAID = os.dup(1)
sys.dont_write_bytecode = True
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
import burn  # noqa: E402


def work(seconds):
    burn.main(seconds)


def serve(seconds):
    workers = []
    for _ in range(2):
        worker = os.fork()
        if worker == 0:
            work(seconds)
            os._exit(0)
        workers.append(worker)
    os.write(SAID, f"ready pid={os.getpid()} child={workers[0]} other={workers[1]}\n".encode())
    for worker in workers:
        os.waitpid(worker, 0)


serve(float(arguments[0]) if arguments else 4)
