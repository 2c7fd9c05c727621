# PHP's own server without a cache of scripts: ten scripts of one shape take turns, and each request puts its functions where
# those of another one were. The names of a stack's functions end in the number of their script.
#
# scripts.py FOLDER SECONDS PHP [OPTION...]: writes the scripts into FOLDER, prints the server's `ready pid=N`

import http.client
import os
import socket
import subprocess
import sys
import threading
import time

SCRIPT = """<?php%s
function in_%d($n) { for ($x = 0, $i = 0; $i < $n; $i++) { $x ^= $i * 7 %% 11; } return $x; }
class K_%d { function met_%d($n) { return in_%d($n) ^ in_%d($n); } }
$call_%d = function ($n) { return (new K_%d)->met_%d($n); };
echo $call_%d(100000);
"""

folder, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
for number in range(10):
    with open(os.path.join(folder, f"s_{number}.php"), "w") as file:
        file.write(SCRIPT % ("\n" * 20 * number, *[number] * 9))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen(
    [*command, "-S", f"127.0.0.1:{port}", "-t", folder],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)


def ask(number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/s_{number % 10}.php")
    connection.getresponse().read()
    connection.close()


def ask_until(end):
    number = 0
    while time.monotonic() < end:
        ask(number)
        number += 1


for _ in range(200):
    try:
        ask(0)
        break
    except OSError:
        if server.poll() is not None:
            sys.exit(f"{command[0]} has ended with {server.returncode}")
        time.sleep(0.05)
asker = threading.Thread(target=ask_until, args=(time.monotonic() + seconds,), daemon=True)
asker.start()
print(f"ready pid={server.pid}", flush=True)
asker.join()
server.terminate()
server.wait()
