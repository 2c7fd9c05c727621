#!/bin/sh
# Records the stacks of stacks.py, of each CPython in the arguments: `record.sh /path/to/python_stack debian-3.11
# /path/to/python3.11 ...`. What the program says of its stacks is kept beside.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1
shift
mkdir -p /tmp/stacks && cp "$here/stacks.py" /tmp/stacks/
while [ $# -gt 1 ]; do
  name=$1 python=$2
  shift 2
  said=$here/$name.said
  rm -f "$said"
  "$python" /tmp/stacks/stacks.py "$said" &
  pid=$!
  sleep 2
  "$example" $pid --record "$here/$name.mem" >"/tmp/stacks/$name.printed"
  kill $pid
  wait $pid 2>/dev/null || true
  ls -l "$here/$name.mem"
done
