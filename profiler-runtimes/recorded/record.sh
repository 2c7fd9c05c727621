#!/bin/sh
# Records stacks of tiers.js, of each Node in the arguments: `record.sh /path/to/v8_stack node20 /path/to/node ...`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1
shift
mkdir -p /tmp/tiers && cp "$here/tiers.js" /tmp/tiers/
one() {
  stack=$1 program=$2 mode=$3
  shift 3
  "$program" "$@" /tmp/tiers/tiers.js $mode &
  pid=$!
  sleep 6
  # The thread that has used the most time.
  tid=$(for task in /proc/$pid/task/*; do echo "$(awk '{print $14}' $task/stat) ${task##*/}"; done | sort -n | tail -1 | cut -d' ' -f2)
  "$example" $pid --tid "$tid" --until pause --frames 10 --record "$here/$stack.mem" | grep JS: | cut -c1-90
  kill $pid
  wait $pid 2>/dev/null || true
  ls -l "$here/$stack.mem"
}
while [ $# -gt 1 ]; do
  name=$1 node=$2
  shift 2
  one "$name-default" "$node" ''
  one "$name-baseline" "$node" '' --always-sparkplug --no-opt --no-maglev
  one "$name-interpreted" "$node" '' --no-sparkplug --no-opt --no-maglev
  one "$name-maglev" "$node" '' --maglev --no-opt
  one "$name-thread" "$node" thread
  one "$name-context" "$node" context
done
