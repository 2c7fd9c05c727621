# PHP's own server without a cache of scripts: ten scripts of one shape take turns, and each request puts its functions where
# those of another one were. The names of a stack's functions end in the number of their script.
#
# scripts.py FOLDER SECONDS PHP [OPTION...]: writes the scripts into FOLDER, prints the server's `ready pid=N`
# scripts.py --app ROOT SECONDS PHP [OPTION...]: asks for ROOT/index.php instead, for 5 ms each time, with a pause of 10 ms

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

words = sys.argv[1:]
is_app = words[0] == "--app"
words = words[1:] if is_app else words
folder, seconds, command = words[0], float(words[1]), words[2:]
paths, pause = [f"/s_{number}.php" for number in range(10)], 0
if is_app:
    paths, pause = ["/index.php?seconds=0.005"], 0.01
for number in range(0 if is_app else 10):
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
    connection.request("GET", paths[number % len(paths)])
    connection.getresponse().read()
    connection.close()


def ask_until(end):
    number = 0
    while time.monotonic() < end:
        ask(number)
        number += 1
        time.sleep(pause)


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
