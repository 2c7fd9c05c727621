# The archive's install.sh, in short. Read by guest.sh.
there >/tmp/before
sysctl -w kernel.perf_event_paranoid=2
tar -xf /payload/jitprof.tar.xz -C /tmp
check 'the archive can be installed' sh -c 'cd /tmp/jitprof-* && ./install.sh --service'
check 'and started' systemctl start jitprof
check 'answers again' until_true 'get /healthz'
check 'and removed' sh -c 'cd /tmp/jitprof-* && ./install.sh --uninstall && ! systemctl is-active jitprof'
rm -rf /var/lib/jitprof
there >/tmp/after
check 'nothing but its recordings is left' diff /tmp/before /tmp/after
