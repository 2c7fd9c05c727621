# Runs in the machine that run.sh starts. Lines that begin with GUEST are the verdict; all else is for reading.
# What is tried is in a file for each part.
failed=0
check() { # what, then a command that must succeed
    what=$1
    shift
    if "$@" >/tmp/out 2>&1; then echo "GUEST ok   $what"; else
        failed=$((failed + 1)); echo "GUEST FAIL $what"; sed 's/^/     | /' /tmp/out; fi
}
has() { grep -q -- "$1" "$2"; }
authorization() { echo "Authorization: Bearer $(cat /run/jitprof/token-7878)"; }
get() { curl -sS -f --max-time 60 -H "$(authorization)" "http://127.0.0.1:7878$1"; }
windows() { find /var/lib/jitprof -name '*.pb.gz' | wc -l; }
show() { echo "--- $*"; "$@" 2>&1; }
until_true() { for _ in $(seq 40); do eval "$1" && return; sleep 2; done; return 1; }

cd /
there() { find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /run -o -path /var/log \) -prune \
    -o -name '*jitprof*' -print | sort; }
for part in $(cat /payload/parts); do
    echo "GUEST -- $part"
    . "/payload/guest-$part.sh"
done
journalctl -k --no-pager | grep -iE 'audit|seccomp|oom' | tail
[ "$failed" = 0 ] && echo 'GUEST all passed' || echo "GUEST $failed failed"
