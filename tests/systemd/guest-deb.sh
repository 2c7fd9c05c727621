# The Debian package, and the service as a whole. Read by guest.sh.
there >/tmp/before
check 'the package can be installed' dpkg -i /payload/jitprof.deb
check 'has the user of the service' id jitprof
check 'starts nothing' sh -c '! systemctl is-active jitprof && ! systemctl is-enabled jitprof'
check 'says its version' sh -c 'jitprof --version | grep "BPF object"'
# An emulated CPU is slow: the limit would lower the frequency.
sed -i 's/^max_cpu = .*/max_cpu = 100.0/' /etc/jitprof/jitprof.toml
show systemctl --version
show systemctl is-system-running
check 'systemd-analyze verify' sh -c 'systemd-analyze verify /usr/lib/systemd/system/jitprof.service 2>&1 | tee /dev/stderr | (! grep .)'
show systemd-analyze security jitprof --no-pager | tail -1

# A native program in a file that only its owner may read, generated code in a dump of the same kind, a loop of root.
useradd --create-home alice
chmod 700 /home/alice
install -o alice -m 700 /payload/burn /home/alice/burn
cat >/home/alice/hot.js <<'J'
function hot_in_node(n) { let s = 0; for (let i = 0; i < n; i++) s += i % 7; return s; }
for (;;) hot_in_node(1e6);
J
systemd-run --quiet --unit alice-burn --uid alice -p WorkingDirectory=/home/alice /home/alice/burn
systemd-run --quiet --unit alice-node --uid alice -p WorkingDirectory=/home/alice -p UMask=0077 \
    node --perf-prof --interpreted-frames-native-stack /home/alice/hot.js
systemd-run --quiet --unit root-loop sh -c 'while :; do :; done'

# As Debian is: kernel.perf_event_paranoid is 3.
show cat /proc/sys/kernel/perf_event_paranoid
check 'with paranoid 3 it does not start' sh -c '! systemctl start jitprof'
journalctl -u jitprof --no-pager >/tmp/journal
cat /tmp/journal
check 'and says what to do' has perf_event_paranoid /tmp/journal
systemctl stop jitprof

check 'with CAP_SYS_ADMIN it does' sh -c '
    mkdir -p /run/systemd/system/jitprof.service.d
    printf "[Service]\nAmbientCapabilities=CAP_SYS_ADMIN\nCapabilityBoundingSet=CAP_SYS_ADMIN\n" \
        >/run/systemd/system/jitprof.service.d/admin.conf
    systemctl daemon-reload && systemctl reset-failed jitprof; systemctl start jitprof'
show systemctl --no-pager status jitprof
systemctl stop jitprof
rm -r /run/systemd/system/jitprof.service.d
systemctl daemon-reload

sysctl -w kernel.perf_event_paranoid=2
check 'with paranoid 2 it starts' systemctl start jitprof
started=$(date +%s)
show systemctl --no-pager status jitprof
pid=$(systemctl show -P MainPID jitprof)
check 'answers /healthz' until_true 'get /healthz'
for task in /proc/"$pid"/task/*; do
    # Some are for one thing only, and end meanwhile.
    rights=$(grep -E 'CapEff|NoNewPrivs|Seccomp:|Uid' "$task"/status 2>/dev/null | tr '\n\t' '  ')
    test -z "$rights" || echo "$(cat "$task"/comm) $rights"
done >/tmp/threads
cat /tmp/threads
check 'is not root' sh -c "! grep -q 'Uid: 0' /tmp/threads"
check 'all threads have no_new_privs and a seccomp filter' sh -c "! grep -v 'NoNewPrivs: 1 Seccomp: 2' /tmp/threads"
check 'the main thread has no capabilities' has 'CapEff:.0000000000000000' /proc/"$pid"/status
folded() { get '/profile?from=-20s&format=folded&per-process=1' >/tmp/folded; }
check 'names in a file of mode 700 of another user' until_true 'folded && has burn_in_a_private_file /tmp/folded'
check 'generated code in a dump of mode 600' until_true 'folded && has hot_in_node /tmp/folded'
check 'a loop of root, and names of the kernel' until_true 'folded && has ";sh;.*_sysvec_apic_timer" /tmp/folded'
check 'a profile over /debug/pprof' sh -c '
    curl -sSf -H "Authorization: Bearer $(cat /run/jitprof/token-7878)" "http://127.0.0.1:7878/debug/pprof/profile?seconds=3" -o /tmp/profile.pb.gz &&
    jitprof report --top 9 /tmp/profile.pb.gz >/tmp/report'
cat /tmp/report
get /metrics >/tmp/metrics
check 'another user of the machine gets nothing' sh -c '! su alice -c "cat /run/jitprof/token-7878" &&
    test "$(curl -s -o /dev/null -w "%{http_code}" http://127.0.0.1:7878/metrics)" = 401'
check 'metrics' has '^jitprof_up 1' /tmp/metrics
grep -E '^jitprof_(up|samples|cpu|kernel_cpu|resident|windows|jit|sampling|open)' /tmp/metrics

sed -i 's/^frequency = .*/frequency = 49/' /etc/jitprof/jitprof.toml
check 'reload' systemctl reload jitprof
check 'the new frequency is in force' until_true \
    'get /metrics >/tmp/metrics; has "^jitprof_sampling_frequency_hertz 49" /tmp/metrics'
echo 'nonsense = 1' >>/etc/jitprof/jitprof.toml
check 'a wrong configuration is refused, it goes on' sh -c '! systemctl reload jitprof && systemctl is-active jitprof'
sed -i '/^nonsense/d' /etc/jitprof/jitprof.toml

left=$((130 - ($(date +%s) - started)))
[ "$left" -gt 0 ] && sleep "$left"
check 'lives longer than its watchdog' test "$(systemctl show -P MainPID -P NRestarts jitprof | tr '\n' ' ')" = "$pid 0 "
show systemctl show -P MemoryCurrent -P CPUUsageNSec jitprof
before=$(windows)
check 'stops' systemctl stop jitprof
check 'with success' test "$(systemctl show -P Result -P ExecMainStatus jitprof | tr '\n' ' ')" = 'success 0 '
ls -l /var/lib/jitprof/*/ | tail -4
check 'the last window is written' test "$(windows)" -gt "$before"
show jitprof report /var/lib/jitprof --from -5m --top 9
journalctl -u jitprof --no-pager >/tmp/journal
cat /tmp/journal
# On a slow machine a service that is stopped at once may not have its names.
check 'its log has no other warning' sh -c \
    "grep -v 'names took too long' /tmp/journal | (! grep -E ' WARN | ERROR |panick')"
check 'starts again on the same directory' systemctl enable --now jitprof
check 'the package can be installed over itself' dpkg -i /payload/jitprof.deb
check 'the service runs again' until_true 'get /healthz'
check 'with the configuration that was changed' has '^max_cpu = 100.0' /etc/jitprof/jitprof.toml

check 'the package can be removed' dpkg -r jitprof
check 'which stops the service' sh -c '! systemctl is-active jitprof && ! systemctl cat jitprof'
check 'configuration and recordings stay' test -f /etc/jitprof/jitprof.toml -a -d /var/lib/jitprof
check 'they go with a purge' sh -c 'dpkg -P jitprof && ! test -e /etc/jitprof && ! test -e /var/lib/jitprof'
there >/tmp/after
check 'nothing else is left' diff /tmp/before /tmp/after
