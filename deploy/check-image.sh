#!/usr/bin/env bash
# Builds both images without Docker, a daemon or privileges, on a stand-in base of Debian's Python, and
# starts their entry points as the image's user. For people with minutes, and not for every change.
#
# Proves: instructions, what is copied, that pip resolves, the user, that the entry points start.
# Does not: the real base images' content, another architecture, size, digest; torch is not in it.
#
# Needs: apt-get install --no-install-recommends buildah mmdebstrap
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-$(mktemp -d)}
mkdir -p "$work"
base=localhost/everstep-stand-in:bookworm

build() {
  buildah --storage-driver vfs --root "$work/images" --runroot "$work/run" bud --isolation chroot --pull-never \
    -v /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro "${mounts[@]}" "$@"
}
run() { # IMAGE COMMAND...
  local from
  from=$(buildah --storage-driver vfs --root "$work/images" --runroot "$work/run" from --pull-never "$1")
  shift
  buildah --storage-driver vfs --root "$work/images" --runroot "$work/run" run --isolation chroot "$from" -- "$@"
}
# This machine's way to a package index, where it has one of its own.
mounts=()
for place in /etc/pip.conf /etc/xdg/pip; do
  if [[ -e $place ]]; then mounts+=(-v "$place:$place:ro"); fi
done

if [[ ! -e $work/rootfs.tar ]]; then
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/rootfs.tar"
fi
mkdir -p "$work/base"
cp "$work/rootfs.tar" "$work/base/"
cat > "$work/base/Dockerfile" <<'BASE'
FROM scratch
ADD rootfs.tar /
RUN python3 -m venv /opt/base
ENV PATH=/opt/base/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
BASE
build -t "$base" "$work/base"
for target in controller agent; do
  build -f deploy/Dockerfile --target "$target" --build-arg PYTHON="$base" -t "localhost/everstep-$target" .
done

for image in controller agent; do
  user=$(run "localhost/everstep-$image" python -c 'import os; print(os.getuid())')
  [[ $user == 10001 ]] || { echo "everstep-$image runs as $user" >&2; exit 1; }
done
# Whoever runs a command in a pod is a user without a name.
person=$(run localhost/everstep-controller python -c 'from everstep.cli.person import person; print(person())')
[[ $person == "user 10001" ]] || { echo "a person in a controller's pod is $person" >&2; exit 1; }
manifests=$(run localhost/everstep-controller everstep install --print)
grep -q '^kind: Deployment' <<< "$manifests"
# Without settings they say which one they lack, which takes all of their imports.
starts() { # IMAGE ARGUMENT...
  local said
  said=$(run "$@" 2>&1) && { echo "$1 did not refuse to start without settings" >&2; exit 1; }
  grep -q 'EVERSTEP_[A-Z_]*: field required\|EVERSTEP_RUN_DIRECTORY' <<< "$said" || { echo "$said" >&2; exit 1; }
  echo "$2 $3 $4: starts, and names the setting that it lacks"
}
starts localhost/everstep-controller python -m everstep.workers.controller
starts localhost/everstep-controller python -m everstep.workers.analyzer
starts localhost/everstep-controller python -m everstep.workers.node
starts localhost/everstep-agent python -m everstep.workers.agent m0
echo "both images build on a stand-in base and start as user 10001; the real bases were not tried"
