#!/bin/sh
# Start Chromium without the right to real-time threads, which it uses as root: one that spins stops the whole machine.
program=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || exit 127
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  exec setpriv --bounding-set=-sys_nice --inh-caps=-sys_nice "$program" "$@"
fi
exec "$program" "$@"
