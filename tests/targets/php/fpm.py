# php-fpm with two workers, each of which burn.php keeps busy: a master that sleeps, and workers of another user that
# write to its dump. A FastCGI client takes the place of the web server.
#
# fpm.py FOLDER SECONDS PHP_FPM [OPTION...]: writes its configuration into FOLDER, prints the master's `ready pid=N`

import os
import socket
import struct
import subprocess
import sys
import threading
import time

folder, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "burn.php")
address = os.path.join(folder, "fpm.sock")
configuration = os.path.join(folder, "fpm.conf")
# 33 is www-data's number, which a root without /etc/passwd does not know by name.
with open(configuration, "w") as file:
    file.write(
        f"[global]\nerror_log = {folder}/fpm.log\n[www]\nuser = 33\ngroup = 33\nlisten = {address}\npm = static\n"
        "pm.max_children = 2\n"
    )
if os.path.exists(address):
    os.unlink(address)


def pair(name, value):
    return struct.pack("!BB", len(name), len(value)) + name.encode() + value.encode()


def record(kind, content):
    return struct.pack("!BBHHBx", 1, kind, 1, len(content), 0) + content


# FCGI_BEGIN_REQUEST as a responder, FCGI_PARAMS and FCGI_STDIN, both with their ends.
variables = {"SCRIPT_FILENAME": script, "REQUEST_METHOD": "GET", "SCRIPT_NAME": "/burn.php", "QUERY_STRING": ""}
request = record(1, struct.pack("!HB5x", 1, 0))
request += record(4, b"".join(pair(name, value) for name, value in variables.items())) + record(4, b"") + record(5, b"")


def ask(end):
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendall(request)
            while connection.recv(65536):
                pass


master = subprocess.Popen(
    [*command, "--nodaemonize", "--fpm-config", configuration],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
while not os.path.exists(address):
    if master.poll() is not None:
        sys.exit(f"{command[0]} has ended with {master.returncode}: see {folder}/fpm.log")
    time.sleep(0.05)
end = time.monotonic() + seconds
askers = [threading.Thread(target=ask, args=(end,), daemon=True) for _ in range(2)]
for asker in askers:
    asker.start()
print(f"ready pid={master.pid}", flush=True)
for asker in askers:
    asker.join()
master.terminate()
master.wait()
