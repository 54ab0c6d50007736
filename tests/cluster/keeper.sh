#!/bin/bash
# Keeps a node until standard input ends, which it does however this script's parent ends: keeper.sh STATE PROGRAMS CGROUP
# Then nothing of the node is left: processes, namespaces with their mounts and interfaces, cgroups, STATE.
set -uo pipefail
state=$1 cgroup=$3
here=$(dirname "$0")

# One hierarchy for each controller in version 1 of cgroups, one for all in version 2.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ -e "$hierarchy/cgroup.procs" ] && mkdir -p "$hierarchy$cgroup"
done

unshare --net --mount --pid --uts --fork --kill-child --mount-proc "$here/node.sh" "$@" < /dev/null > "$state/node.log" 2>&1 &
outer=$!
trap '' INT TERM HUP
until pgrep --parent "$outer" > "$state/pid"; do kill -0 "$outer" 2> /dev/null || break; sleep 0.1; done

read -r _

kill -KILL "$(cat "$state/pid")" 2> /dev/null # process 1 of its namespace: all others end with it
wait "$outer" 2> /dev/null
for _ in {1..50}; do
  find /sys/fs/cgroup -depth -type d -path "*$cgroup*" -exec rmdir {} + 2> /dev/null && break
  sleep 0.2
done
rm -rf "$state"
