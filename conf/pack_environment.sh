#!/usr/bin/env bash
# Packs this project and all that it needs, but Spark, into one file for spark-submit's --archives.
# usage: pack_environment.sh [--lane classic|modern] [--python PATH] [--python-prefix DIR] OUTPUT.tar.gz
set -euo pipefail

usage() {
    cat <<'END'
usage: pack_environment.sh [--lane classic|modern] [--python PATH] [--python-prefix DIR]
                           OUTPUT.tar.gz

Packs a Python environment with this project, torch, Horovod, MLflow and Arrow into one file, which
Spark unpacks on every host:

  export PYSPARK_PYTHON=./environment/bin/python
  export PYSPARK_DRIVER_PYTHON=…/bin/python        # in client mode: one that is already unpacked
  spark-submit --archives OUTPUT.tar.gz#environment jobs/train.py …

  --lane NAME          the versions to take: classic (Spark 3.5, the default) or modern (Spark 4)
  --python PATH        the Python to build with: 3.11 or 3.12 (default: $PYTHON, else python3)
  --python-prefix DIR  where that same Python is on the hosts, if not where it is here: the folder
                       that has bin/python3 in it

The file holds packages and a link to Python, not Python itself: every host, the driver's in cluster
mode included, needs the same version at the same path, here or by --python-prefix. pyspark is left
out: spark-submit puts the cluster's own on the path.

Everything but this project is built once, in some minutes, and kept below sparkdl-runner/environments
in the user's cache folder (about 0.5 GB; it may be deleted, and is when unused for a month). After
that, a change of the project alone costs seconds.
END
}

say() { printf 'pack: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

lane=classic python=${PYTHON:-python3} python_prefix='' output=''
while [ $# -gt 0 ]; do
    case $1 in
        --lane | --python | --python-prefix)
            [ $# -gt 1 ] || fail "$1 needs a value after it; --help says which."
            case $1 in
                --lane) lane=$2 ;;
                --python) python=$2 ;;
                --python-prefix) python_prefix=$2 ;;
            esac
            shift
            ;;
        --help | -h) usage && exit ;;
        -*) fail "unknown argument $1; --help lists those there are." ;;
        *)
            [ -z "$output" ] || fail "two outputs are named, $output and $1; name one."
            output=$1
            ;;
    esac
    shift
done
case $lane in
    classic | modern) ;;
    *) fail "there is no lane '$lane'; it is classic or modern." ;;
esac
case $output in
    *.tar.gz | *.tgz) ;;
    '') fail "name the file to write, as in: pack_environment.sh environment.tar.gz" ;;
    *) fail "$output must end in .tar.gz, by which Spark knows how to unpack it." ;;
esac
case $python_prefix in
    '' | /*) ;;
    *) fail "--python-prefix is $python_prefix; it must be a full path, as hosts of a cluster have it." ;;
esac
output=$(realpath -m "$output")
[ -w "$(dirname "$output")" ] ||
    fail "cannot write to the folder $(dirname "$output"); make it, or name another output."
found=$(command -v "$python") || fail "there is no Python at '$python'; name one with --python."
version=$("$found" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "$found cannot make virtual environments; install what it lacks (Debian: apt-get install" \
        "python3-venv) or name another with --python."
case $version in
    3.11 | 3.12) ;;
    *) fail "$found is no Python 3.11 or 3.12${version:+, but $version}; name the cluster's own with --python." ;;
esac
# Not a shim in front of it: the link that is packed leads there.
python=$("$found" -c 'import os, sys; print(os.path.realpath(sys.executable))')

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=SCRIPTDIR/owned_path.sh
. conf/owned_path.sh
constraints=$PWD/conf/constraints-$lane.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONPATH PYTHONHOME PIP_CONSTRAINT

key=$({
    cat "$constraints" setup.cfg conf/pack_environment.sh conf/owned_path.sh conf/horovod/build.sh
    echo "$lane $python $("$python" -VV) $python_prefix ${HOROVOD_GPU_OPERATIONS:-}"
} | sha256sum | cut -c -16)
# By its real name, since a link on the way could be turned after it was looked at.
environments=$(realpath -m "${XDG_CACHE_HOME:-${HOME:-~}/.cache}/sparkdl-runner/environments")
base=$environments/$lane-$version-$key
# What is kept there is run, and packed for the cluster.
fault=$(fault_of_path "$base")
[ -z "$fault" ] || fail "found $fault, on the way to the cache folder $environments, from which programs" \
    "are run: expected all of it to be yours or root's, and writable by nobody else. Set" \
    "XDG_CACHE_HOME to such a folder, or correct that (chown, chmod go-w)."
(umask 022 && mkdir -p "$base") 2>/dev/null ||
    fail "cannot write to $base; set XDG_CACHE_HOME to a folder that can be written."
work=$(mktemp -d "$base/work-XXXXXXXX")
# What nothing was packed from for a month was for other versions.
find "$environments" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# ---- the project's wheel -----------------------------------------------------------------------

if command -v flock >/dev/null; then
    exec 8>"$base/.lock"
    flock -n 8 || { say "waiting for another packing of the same environment" && flock 8; }
fi
# Tools stay out of what is packed.
tools=$base/tools/bin/python
if [ ! -e "$base/tools/done" ]; then
    rm -rf "$base/tools"
    "$python" -m venv "$base/tools"
    "$tools" -m pip install --quiet --no-compile --constraint "$constraints" \
        pip setuptools wheel venv-pack >&2 ||
        fail "pip could not install what packing needs (see above)."
    touch "$base/tools/done"
fi

# From a copy: what building leaves behind is not left here.
mkdir "$work/source"
cp -rL setup.cfg pyproject.toml README.md LICENSE sparkdl_runner "$work/source/"
"$tools" -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir "$work" \
    "$work/source" >&2 || fail "the project's wheel could not be built (see above)."
wheel=$(echo "$work"/sparkdl_runner-*.whl)

# ---- everything else, once ---------------------------------------------------------------------

# Compiles what every training imports. The rest would take a minute more, and its hosts compile what
# they need of it.
compile_imported() {
    "$1" -I -W ignore - <<'END' || say "not all packages could be imported here; hosts compile them."
import contextlib
import importlib

for name in (
    *("horovod.torch", "mlflow.pyfunc", "mlflow.store.tracking.rest_store", "pandas"),
    *("pyarrow.dataset", "pyarrow.parquet", "torch._dynamo", "torch.utils.data"),
):
    # Such as Horovod for GPUs, where there is none.
    with contextlib.suppress(Exception):
        importlib.import_module(name)
END
}

make_base() {
    local environment=$work/environment horovod
    say "installing packages for $lane with Python $version, some minutes, once"
    "$python" -m venv --without-pip "$environment"
    local install=("$tools" -m pip --python "$environment/bin/python" install --quiet --no-compile)
    "${install[@]}" --constraint "$constraints" "${wheel}[torch]" ||
        fail "pip could not install torch (see above)."
    horovod=$(conf/horovod/build.sh --wheel-only --python "$environment/bin/python")
    "${install[@]}" --constraint "$constraints" "$horovod" \
        "${wheel}[torch,horovod,mlflow,jobs,hdfs]" pyarrow scikit-learn ||
        fail "pip could not install the packages of $constraints (see above)."
    "$tools" -m pip --python "$environment/bin/python" uninstall --quiet --yes sparkdl-runner
    "$tools" -m pip --python "$environment/bin/python" check >&2 ||
        fail "the packages do not fit together (see above)."
    say "packing them"
    compile_imported "$environment/bin/python"
    "$tools" -m venv_pack --quiet --prefix "$environment" --format tar --output "$work/base.tar" \
        ${python_prefix:+--python-prefix "$python_prefix"} "${left_out[@]}" >&2 ||
        fail "venv-pack could not pack the environment (see above)."
    # Without the mark of its end, so that the project's own files can follow.
    head -c "$("$tools" - "$work/base.tar" <<'END'
import sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    archive.getmembers()
    print(archive.offset)
END
    )" "$work/base.tar" | gzip -1 >"$work/base.tar.gz"
    # A rename is all or nothing.
    mv "$work/base.tar.gz" "$base/base.tar.gz"
    rm -r "$work/base.tar" "$environment"
}

# Tests of libraries, which no program imports, and programs of torch's own build.
left_out=(
    --exclude '*/site-packages/torch/test/*'
    --exclude '*/site-packages/torch/bin/protoc*'
    --exclude '*/site-packages/torch/bin/test_*'
    --exclude '*/site-packages/pandas/tests/*'
    --exclude '*/site-packages/pyarrow/tests/*'
    --exclude '*/site-packages/sympy/*/tests/*'
    --exclude '*/site-packages/scipy/*/tests/*'
    --exclude '*/site-packages/sklearn/*/tests/*'
    --exclude '*/site-packages/networkx/*/tests/*'
)
[ -e "$base/base.tar.gz" ] || make_base

# ---- both in one file --------------------------------------------------------------------------

"$tools" -m pip install --quiet --no-deps --no-index --compile --prefix "$work/project" "$wheel" >&2 ||
    fail "the project's wheel could not be unpacked (see above)."
# As venv-pack does it: whichever Python is activated.
find "$work/project" -path '*/bin/*' -type f -exec sed -i '1s|^#!.*|#!/usr/bin/env python|' {} +
# gzip files that follow one another are one gzip file.
if ! {
    cat "$base/base.tar.gz" &&
        tar -C "$work/project" --owner=0 --group=0 --numeric-owner -cf - . | gzip -1
} >"$output.part" || ! mv "$output.part" "$output"; then
    rm -f "$output.part"
    fail "could not write $output; is there room for $(du -h "$base/base.tar.gz" | cut -f 1)?"
fi
say "wrote $output ($(du -h "$output" | cut -f 1)), for hosts with Python at" \
    "$(realpath -m "${python_prefix:-$("$python" -c 'import sys; print(sys.base_prefix)')}")"
