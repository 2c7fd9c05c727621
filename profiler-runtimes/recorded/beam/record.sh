#!/bin/sh
# Records the modules of stacks.erl, of each Erlang/OTP in the arguments, by the folder of its programs: `record.sh
# /path/to/vm_stack debian-25 /usr/bin ...`. What the emulator says of them is kept beside. With ROOT, they run in that root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1 root=${ROOT:-}
shift
into=${root:+chroot $root}
mkdir -p "$root/tmp/stacks" && cp "$here/stacks.erl" "$root/tmp/stacks/"
said=$root/tmp/stacks/said
while [ $# -gt 1 ]; do
  name=$1 folder=$2
  shift 2
  rm -f "$said"
  $into sh -c "cd /tmp/stacks && exec $folder/erlc stacks.erl"
  $into "$folder/erl" -noshell -noinput +S 1 -pa /tmp/stacks -run stacks main /tmp/stacks/said &
  pid=$!
  for _ in $(seq 100); do [ -s "$said" ] && break; sleep 0.1; done
  # Between what it says and that it waits.
  sleep 1
  "$example" $pid --record "$here/$name.mem"
  kill -9 $pid
  wait $pid 2>/dev/null || true
  cp "$said" "$here/$name.said"
  ls -l "$here/$name.mem"
done
