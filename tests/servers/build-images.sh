#!/bin/bash
# Builds container images of real servers from Debian's packages, for machines whose Docker engine can
# pull no image: standin/redis, standin/postgres, standin/mariadb (Debian 12) and standin/mysql (Debian
# sid: the only real MySQL there). Each is tagged with its own version and with :latest. They take the
# variables, ports and arguments of the official images, so that one harness starts either.
#
# Usage: build-images.sh [redis|postgres|mariadb|mysql]...     (all by default; skips what is there)
# Needs: root, a running Docker engine, Debian's package archive, debootstrap (installed if missing).
# Running it again, or twice at once, is safe: one builds, the other waits and then finds all there.
set -euo pipefail
entrypoints=$(cd "$(dirname "$0")" && pwd)/entrypoints

say() { echo "build-images: $*" >&2; }

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(redis postgres mariadb mysql)
for name in "${wanted[@]}"; do
  case $name in
    redis | postgres | mariadb | mysql) ;;
    *) say "unknown image $name"; exit 2 ;;
  esac
done
docker info >/dev/null 2>&1 || { say "no Docker engine answers"; exit 1; }

missing=()
find_missing() {
  local name
  missing=()
  for name in "${wanted[@]}"; do
    docker image inspect "standin/$name:latest" >/dev/null 2>&1 || missing+=("$name")
  done
}
find_missing
[ ${#missing[@]} -gt 0 ] || { say "all there"; exit 0; }
[ "$(id -u)" = 0 ] || { say "needs root to unpack Debian packages"; exit 1; }

exec 9>/run/lockcore-build-images.lock
flock 9
find_missing # another run may have built them while this one waited
[ ${#missing[@]} -gt 0 ] || { say "all there"; exit 0; }

# Unpacking writes tens of thousands of small files: in memory where there is plenty of it.
work=$(mktemp -d)
trap 'umount -l "$work" 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
if awk '/^MemAvailable/ { exit !($2 > 8000000) }' /proc/meminfo; then
  mount -t tmpfs tmpfs "$work" -o size=4g,mode=700 2>/dev/null || true
fi

# run LOG COMMAND...: silent unless the command fails, then the end of its output
run() {
  local log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 || { say "failed: $*"; tail -40 "$log" >&2; return 1; }
}

if ! command -v debootstrap >/dev/null; then
  command -v apt-get >/dev/null || { say "needs debootstrap"; exit 1; }
  run apt-update apt-get update -qq
  run apt-install env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq --no-install-recommends debootstrap
fi

# base SUITE PACKAGE...: the image standin/base-SUITE with the packages installed and no service started
base() {
  local suite=$1 root=$work/$1
  shift
  run "debootstrap-$suite" debootstrap --variant=minbase "$suite" "$root"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # this machine's way to the archive (a proxy, say) while building; not kept in the image
  cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  # a mirror's copy of sid can be some days old
  run "update-$suite" chroot "$root" apt-get -qq -o Acquire::Check-Valid-Until=false update
  # once more if it fails: MySQL's package starts a server as it is configured, and gives up where that is slow
  local install=(env DEBIAN_FRONTEND=noninteractive
    chroot "$root" apt-get install -y -qq --no-install-recommends "$@")
  run "install-$suite" "${install[@]}" || run "install-$suite" "${install[@]}"
  rm -rf "$root"/var/cache/apt "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale} \
    "$root"/var/lib/mysql "$root"/etc/apt/apt.conf.d/*
  tar -C "$root" -c . | docker import - "standin/base-$suite" >/dev/null
  rm -rf "$root"
}

# image NAME SUITE VERSION-COMMAND DOCKERFILE-LINES
image() {
  local name=$1 suite=$2 version=$3 lines=$4 context=$work/context-$1
  mkdir "$context"
  cp "$entrypoints"/* "$context"
  printf 'FROM standin/base-%s\n%s\n' "$suite" "$lines" >"$context/Dockerfile"
  # the classic builder: BuildKit would ask a registry about the base
  run "build-$name" env DOCKER_BUILDKIT=0 docker build -t "standin/$name:building" "$context"
  version=$(docker run --rm --entrypoint sh "standin/$name:building" -c "$version")
  docker tag "standin/$name:building" "standin/$name:$version"
  docker tag "standin/$name:building" "standin/$name:latest"
  docker rmi "standin/$name:building" >/dev/null
  echo "standin/$name:$version"
}

packages=()
for name in "${missing[@]}"; do
  case $name in
    redis) packages+=(redis-server) ;;
    postgres) packages+=(postgresql) ;;
    mariadb) packages+=(mariadb-server) ;;
  esac
done
[ ${#packages[@]} -eq 0 ] || base bookworm "${packages[@]}"

for name in "${missing[@]}"; do
  case $name in
    redis)
      image redis bookworm "redis-server --version | sed 's/.* v=\([0-9.]*\).*/\1/'" \
        'EXPOSE 6379
WORKDIR /data
CMD ["redis-server","--bind","0.0.0.0","--protected-mode","no","--save",""]'
      ;;
    postgres)
      image postgres bookworm "ls /usr/lib/postgresql" \
        'COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
EXPOSE 5432
ENTRYPOINT ["bash","/usr/local/bin/docker-entrypoint.sh"]
CMD ["postgres"]'
      ;;
    mariadb)
      image mariadb bookworm "mariadbd --version | sed 's/.*Ver \([0-9]*\.[0-9]*\).*/\1/'" \
        'COPY mariadb-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
EXPOSE 3306
ENTRYPOINT ["bash","/usr/local/bin/docker-entrypoint.sh"]
CMD ["mariadbd"]'
      ;;
    mysql)
      base sid mysql-server
      image mysql sid "mysqld --version | sed 's/.*Ver \([0-9]*\.[0-9]*\).*/\1/'" \
        'COPY mysql-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
EXPOSE 3306
ENTRYPOINT ["bash","/usr/local/bin/docker-entrypoint.sh"]
CMD ["mysqld"]'
      ;;
  esac
done
