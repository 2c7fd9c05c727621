# The RPM, in short. Read by guest.sh. Debian's rpm has no system of its own: it wants to be told that this is meant, and
# knows of no package that has /bin/sh.
there >/tmp/before
sysctl -w kernel.perf_event_paranoid=2
check 'the RPM can be installed' rpm --force-debian --nodeps -i /payload/jitprof.rpm
check 'its files are as it says' rpm -V --nodeps jitprof
check 'has the user of the service' id jitprof
check 'starts nothing' sh -c '! systemctl is-active jitprof && ! systemctl is-enabled jitprof'
check 'says its version' sh -c 'jitprof --version | grep "BPF object"'
check 'systemd-analyze verify' sh -c 'systemd-analyze verify /usr/lib/systemd/system/jitprof.service 2>&1 | tee /dev/stderr | (! grep .)'
sed -i 's/^max_cpu = .*/max_cpu = 100.0/' /etc/jitprof/jitprof.toml
/payload/burn &
burn=$!
check 'its unit starts' systemctl enable --now jitprof
check 'and answers' until_true 'get /healthz'
check 'and names what runs' until_true \
    'get "/profile?from=-20s&format=folded&per-process=1" >/tmp/folded; has burn_in_a_private_file /tmp/folded'
pid=$(systemctl show -P MainPID jitprof)
check 'the RPM can be installed over itself' rpm --force-debian --nodeps -U --force /payload/jitprof.rpm
check 'which starts the service anew' until_true 'get /healthz && ! test -e /proc/"$pid"'
check 'with the configuration that was changed' has '^max_cpu = 100.0' /etc/jitprof/jitprof.toml
check 'it is enabled still' systemctl is-enabled jitprof
check 'the RPM can be removed' rpm --force-debian -e jitprof
check 'which stops the service' sh -c '! systemctl is-active jitprof && ! systemctl cat jitprof'
check 'the configuration that was changed stays' has '^max_cpu = 100.0' /etc/jitprof/jitprof.toml.rpmsave
kill "$burn"
rm -rf /etc/jitprof /var/lib/jitprof
there >/tmp/after
check 'nothing else is left' diff /tmp/before /tmp/after
