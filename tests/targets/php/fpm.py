# php-fpm with two workers, each of which burn.php keeps busy: a master that sleeps, and workers of another user that
# write to its dump. A FastCGI client takes the place of the web server.
#
# fpm.py [--script PATH] FOLDER SECONDS PHP_FPM [OPTION...]: writes its configuration into FOLDER, prints the master's
# `ready pid=N workers=N,N`. With php-fpm's `-R` its workers are root's, who may read the script wherever it lies.

import os
import socket
import struct
import subprocess
import sys
import threading
import time

words = sys.argv[1:]
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "burn.php")
if words[0] == "--script":
    script, words = os.path.abspath(words[1]), words[2:]
folder, seconds, command = words[0], float(words[1]), words[2:]
address = os.path.join(folder, "fpm.sock")
configuration = os.path.join(folder, "fpm.conf")
# 33 is www-data's number, which a root without /etc/passwd does not know by name.
user = 0 if "-R" in command else 33
with open(configuration, "w") as file:
    file.write(
        f"[global]\nerror_log = {folder}/fpm.log\n[www]\nuser = {user}\ngroup = {user}\nlisten = {address}\npm = static\n"
        "pm.max_children = 2\n"
    )
if os.path.exists(address):
    os.unlink(address)


def pair(name, value):
    return struct.pack("!BB", len(name), len(value)) + name.encode() + value.encode()


def record(kind, content):
    return struct.pack("!BBHHBx", 1, kind, 1, len(content), 0) + content


# FCGI_BEGIN_REQUEST as a responder, FCGI_PARAMS and FCGI_STDIN, both with their ends.
name = "/" + os.path.basename(script)
variables = {"SCRIPT_FILENAME": script, "REQUEST_METHOD": "GET", "SCRIPT_NAME": name, "QUERY_STRING": ""}
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


def workers():
    with open(f"/proc/{master.pid}/task/{master.pid}/children") as file:
        return file.read().split()


# The master makes them once it listens.
while len(workers()) < 2:
    if master.poll() is not None:
        sys.exit(f"{command[0]} has ended with {master.returncode}: see {folder}/fpm.log")
    time.sleep(0.05)
end = time.monotonic() + seconds
askers = [threading.Thread(target=ask, args=(end,), daemon=True) for _ in range(2)]
for asker in askers:
    asker.start()
print(f"ready pid={master.pid} workers={','.join(workers())}", flush=True)
for asker in askers:
    asker.join()
master.terminate()
master.wait()
