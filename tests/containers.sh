#!/bin/sh
# Runs a command as a container does, without a container: tests/containers.sh [WORDS] -- COMMAND…
#
# It is process 1 of a PID name space of its own, in the current directory.  Further words, each
# alone or together:
#   read-only    everything but the current directory is mounted read-only, /tmp too
#   uid          an arbitrary user ID, which has no name, no home directory and no rights
#   host         a host name that does not resolve
#   proxies      http_proxy, https_proxy and grpc_proxy name a proxy that is not there
#   no-ipv6      a network of its own, with 127.0.0.1 alone
#   all          all of these
#   ipv6-only    a network of its own, with ::1 alone
#   systemd      process 1 is systemd, which knows of no unit but those that the command brings;
#                the network is its own
# Where the machine allows no name spaces, one line says why, and the exit status is 77.
set -u

refuse() {
  echo "containers.sh: $1" >&2
  exit 77
}

with_systemd() {
  systemd=/lib/systemd/systemd
  [ -x "$systemd" ] || refuse "there is no systemd here (Debian: the package systemd)"
  mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/systemd/system ||
    refuse "systemd gets no /run"
  if [ -d /sys/fs/cgroup/systemd ]; then
    # Another one in between: the same one twice in one place is refused.
    mount -t tmpfs tmpfs /sys/fs/cgroup/systemd &&
      mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
  else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
  fi || refuse "systemd gets no cgroups"
  units=/run/systemd/system
  mkdir -p $units
  for name in sysinit basic network-online multi-user shutdown; do
    printf '[Unit]\nDefaultDependencies=no\n' >"$units/$name.target"
  done
  export SYSTEMD_UNIT_PATH="$units:/etc/systemd/system" container=containers.sh
  {
    until [ "$(systemctl is-system-running 2>/dev/null)" = running ]; do sleep 0.1; done
    status=0
    "$@" || status=$?
    systemctl --force exit "$status"
  } &
  exec "$systemd" --system --unit=multi-user.target --log-target=null --show-status=no
}

case "${1:-}" in
inside)  # the name spaces are made; $2 has the words, the rest is the command
  shift
  words=" $1 "
  shift
  mount --make-rprivate / || refuse "mounts cannot be made private"
  mount -t proc proc /proc || refuse "no proc of its own may be mounted"
  case "$words" in *" host "*)
    hostname container-without-an-address.invalid || refuse "the host name cannot be set"
  esac
  case "$words" in *" no-ipv6 "* | *" ipv6-only "* | *" systemd "*)
    ip link set lo up || refuse "the network has no loopback interface"
  esac
  case "$words" in *" no-ipv6 "*)
    echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 || refuse "IPv6 cannot be switched off"
  esac
  case "$words" in *" ipv6-only "*)
    ip addr del 127.0.0.1/8 dev lo && ip -6 addr show lo | grep -q ::1 || refuse "::1 is not there"
  esac
  case "$words" in *" read-only "*)
    here=$(pwd -P)
    mount --bind "$here" "$here" || refuse "$here cannot be mounted"
    # From the outermost to the innermost; those of the kernel have nothing to protect.
    cut -d ' ' -f 5 /proc/self/mountinfo | grep -Ev "^(/proc|/sys|/dev)(/|$)" | grep -vxF "$here" |
      while read -r place; do
        mount -o remount,bind,ro "$(printf '%b' "$place")" 2>/dev/null ||
          echo "containers.sh: $place stays as it is" >&2
      done
    ! touch / 2>/dev/null || refuse "the root stays writable"
    cd "$here" || exit 77
  esac
  case "$words" in *" proxies "*)
    for name in http_proxy https_proxy grpc_proxy HTTP_PROXY HTTPS_PROXY; do
      export "$name=http://127.0.0.1:9"
    done
  esac
  case "$words" in *" uid "*)
    export HOME=/
    unset USER LOGNAME
    exec unshare --user --map-user=54321 --map-group=54321 -- "$@"
  esac
  case "$words" in *" systemd "*) with_systemd "$@" ;; esac
  exec "$@"
  ;;
esac

words=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [ "$1" = all ] && words="$words read-only uid host proxies no-ipv6" || words="$words $1"
  shift
done
spaces="--pid --fork --mount --uts"
case "$words" in *ipv6* | *systemd*) spaces="$spaces --net" ;; esac
case "$words" in *systemd*) spaces="$spaces --cgroup --ipc" ;; esac
[ $# -gt 1 ] || refuse "a command is missing: containers.sh [WORDS] -- COMMAND"
shift
command -v unshare >/dev/null || refuse "there is no unshare(1) here"
said=$(unshare --user --map-root-user $spaces true 2>&1) ||
  refuse "this machine lets nobody make name spaces: $said"
exec unshare --user --map-root-user --kill-child $spaces "$0" inside "$words" "$@"
