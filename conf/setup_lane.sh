#!/usr/bin/env bash
# Sets up one lane: a virtual environment with this package and everything pinned for it, Horovod,
# and a Java. Where that is done already it costs some hundredths of a second.
# usage: setup_lane.sh classic|modern
set -euo pipefail

lane=${1:-}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case $lane in
    classic) venv=$PWD/.venv packages=(-e '.[spark,torch,petastorm,mlflow,jobs,dev]') ;;
    modern) venv=$PWD/.venv-modern packages=(-e '.[spark,torch,mlflow,jobs,dev]' 'pyspark[connect]') ;;
    *) echo "usage: ${0##*/} classic|modern" >&2 && exit 2 ;;
esac
constraints=conf/constraints-$lane.txt
stamp=$venv/set-up-done           # what was set up; written last
half_done=$venv/set-up-half-done # there while pip works, so that a torn environment is known

say() { printf '%s lane: %s\n' "$lane" "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Everything that the environment depends on, as one line.
inputs() {
    {
        echo "$PWD"
        cat "$constraints" setup.cfg pyproject.toml conf/setup_lane.sh conf/java_home.sh \
            conf/horovod/build.sh
        "$venv/bin/python" -VV
    } 2>/dev/null | sha256sum
}

is_done() {
    [ -f "$stamp" ] && [ "$(inputs)" = "$(cat "$stamp")" ] || return 1
    [ -x "$(cat "$venv/java-home")/bin/java" ] || return 1
    # A Python that was asked for by name must be the one that is there.
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$venv/bin/python")" ]
}

if is_done; then exit; fi
# One set-up at a time, of both lanes: each writes the package's metadata into this folder.
if command -v flock >/dev/null; then
    exec 9<conf/setup_lane.sh
    flock -n 9 || { say "waiting for another set-up to end" && flock 9; }
    if is_done; then exit; fi
fi

find_python() {
    local name version found=()
    for name in ${PYTHON:-python3 python3.12 python3.11}; do
        version=$(version_of "$name") || continue
        # Arrow 14, which petastorm needs, has no wheels for later ones.
        case $version in 3.11 | 3.12) command -v "$name" && return ;; esac
        found+=("$name ($version)")
    done
    fail "needs Python 3.11 or 3.12 and found ${found[*]:-no working ${PYTHON:-python3}};" \
        "install one (Debian: apt-get install python3.11-dev python3.11-venv; RHEL: dnf install" \
        "python3.11-devel) and name it with PYTHON=python3.11 if it is not found by itself."
}

python=$(find_python)
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments; install what it lacks" \
        "(Debian: apt-get install python$(version_of "$python")-venv)."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONPATH PYTHONHOME

if [ -e "$half_done" ] || [ "$(version_of "$venv/bin/python")" != "$(version_of "$python")" ] ||
    ! head -n 1 "$venv/bin/pip" 2>/dev/null | grep -qF "$venv/bin/python"; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
rm -f "$stamp"
started_with=$(inputs)
# Asked now, so that a missing compiler is told before some minutes of downloads.
conf/horovod/build.sh --check --python "$venv/bin/python"

say "installing packages, some minutes the first time"
touch "$half_done"
"$venv/bin/python" -m pip install --quiet --constraint "$constraints" pip setuptools wheel >&2
# setuptools warns of every editable installation; that is no news here.
PYTHONWARNINGS=ignore "$venv/bin/python" -m pip install --quiet --constraint "$constraints" \
    --no-build-isolation "${packages[@]}" >&2
rm "$half_done"
conf/horovod/build.sh --python "$venv/bin/python"
conf/java_home.sh "$lane" "$venv" >"$venv/java-home"
"$venv/bin/python" -m pip check >&2 || fail "the packages do not fit together (see above)."
echo "$started_with" >"$stamp"
say "ready, with $("$venv/bin/python" -V) and Java at $(cat "$venv/java-home")"
