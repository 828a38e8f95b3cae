#!/usr/bin/env bash
# Makes a folder with tests/gpu and all that they need but Python, torch and numpy, to be carried to
# a machine with a GPU. Wheels of Arrow are for one Python each, and two would be too large.
# usage: make_kit.sh 3.11|3.12 FOLDER     (PYTHON: one with pip and setuptools)
set -euo pipefail

say() { printf 'gpu kit: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

[ $# -eq 2 ] || fail "usage: ${0##*/} 3.11|3.12 FOLDER"
version=$1 folder=$(realpath -m "$2") python=${PYTHON:-python3}
case $version in
    3.11 | 3.12) ;;
    *) fail "GPU_PYTHON is '$version'; it is 3.11 or 3.12, the Python of the machine with the GPU." ;;
esac
[ ! -e "$folder" ] || [ -e "$folder/run.py" ] ||
    fail "$folder is there and is no kit; name another folder."
case $python in */*) python=$(realpath -s "$python") ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
most_bytes=$((60 << 20))
export PIP_DISABLE_PIP_VERSION_CHECK=1

mkdir -p "$(dirname "$folder")"
kit=$(mktemp -d "$folder-XXXXXXXX")
trap 'rm -rf "$kit"' EXIT
mkdir "$kit/source"
# From a copy: what building leaves behind is not left here. In __pycache__ files come and go.
tar -ch --exclude=__pycache__ setup.cfg pyproject.toml README.md LICENSE sparkdl_runner |
    tar -x -C "$kit/source"
"$python" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$kit/wheels" \
    "$kit/source" >&2 || fail "the project's wheel could not be built (see above)."
rm -r "$kit/source"

platforms=()
for name in _2_28 _2_17 _2_12 2014 2010; do platforms+=(--platform "manylinux${name}_x86_64"); done
"$python" -m pip download --quiet --no-deps --only-binary :all: --python-version "$version" \
    --implementation cp "${platforms[@]}" --constraint conf/constraints-modern.txt \
    --dest "$kit/wheels" cloudpickle nvidia-ml-py==13.615.71 psutil pyarrow safetensors \
    pytest iniconfig packaging pluggy pygments pytest-timeout >&2 ||
    fail "pip could not get the wheels (see above)."

mkdir "$kit/project"
cp tests/gpu/run.py "$kit/"
cp --parents setup.cfg tests/conftest.py tests/mlflow_stores.py tests/processes.py \
    tests/unit/data/parquet_sets.py conf/spark/discover_gpus.sh tests/gpu/*.py "$kit/project/"
rm "$kit/project/tests/gpu/run.py"

size=$(du -sb "$kit" | cut -f 1)
[ "$size" -le "$most_bytes" ] ||
    fail "the kit has $size bytes, and $most_bytes are the most that can be carried."
chmod 755 "$kit"
rm -rf "$folder"
mv "$kit" "$folder"
trap - EXIT
say "wrote $folder ($((size >> 20)) MiB) for Python $version; there: python3 ${folder##*/}/run.py"
