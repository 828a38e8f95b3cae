#!/usr/bin/env bash
# Sets up one lane: a virtual environment with this package and everything pinned for it, Horovod,
# and a Java. Where that is done already it costs some hundredths of a second.
# usage: setup_lane.sh classic|modern [running|testing]
#   running    what make demo and the README's examples need
#   testing    that, and the tools for tests, lint and documentation (the default)
set -euo pipefail

lane=${1:-} level=${2:-testing}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case $lane in
    classic) venv=$PWD/.venv extras=spark,torch,petastorm,lake,hdfs,mlflow,estimator,jobs ;;
    modern) venv=$PWD/.venv-modern extras=spark,torch,lake,hdfs,mlflow,estimator,jobs ;;
    *) lane='' ;;
esac
case $lane-$level in
    [cm]*-running | [cm]*-testing) ;;
    *) echo "usage: ${0##*/} classic|modern [running|testing]" >&2 && exit 2 ;;
esac
constraints=conf/constraints-$lane.txt
stamp=$venv/set-up-done          # level and inputs of what was set up; written last
half_done=$venv/set-up-half-done # there while pip works, so that a torn environment is known
log=$venv/pip.log

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
            conf/pip_install.sh conf/pyspark.txt conf/horovod/build.sh
        "$venv/bin/python" -VV
    } 2>/dev/null | sha256sum | cut -d ' ' -f 1
}

is_done() {
    local done_level='' done_inputs=''
    [ -f "$stamp" ] && read -r done_level done_inputs <"$stamp"
    [ "$done_inputs" = "$(inputs)" ] || return 1
    [ "$done_level" = testing ] || [ "$level" = running ] || return 1
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

# ---- processes that end together ---------------------------------------------------------------

running=()
# The first of several that fails has said why: it ends the others.
or_end_all() { "$@" || { kill -USR1 $$ && return 1; }; }
# Starts a command in a process group of its own, so that all that it starts can be ended.
start() {
    set -m
    "$@" </dev/null &
    set +m
    running+=($!)
}
stop() { kill -"${2:-INT}" -- "-$1" 2>/dev/null; }
# Again each second: a process that has only just started can miss a signal.
stop_all() {
    trap '' INT TERM HUP USR1
    # This may come in the middle of "start". With -m bash would print each job that ends, and the
    # newest job may not be in "running" yet.
    set +m
    local process signal left
    mapfile -t left < <(jobs -p)
    left+=("${running[@]}")
    for signal in INT INT INT TERM KILL; do
        for process in "${left[@]}"; do stop "$process" $signal || true; done
        for _ in {1..10}; do
            for process in "${!left[@]}"; do stop "${left[process]}" 0 || unset "left[process]"; done
            [ ${#left[@]} -gt 0 ] || return 0
            sleep 0.1
        done
    done
}
trap stop_all EXIT
trap 'say "interrupted; the same command takes it up again."; exit 130' INT TERM HUP
# Sent by a process below that failed and has said why.
trap 'exit 1' USR1

# On the environment's own disk: what pip leaves there when it is killed goes with the environment.
install() {
    mkdir -p "$venv/tmp"
    TMPDIR=${TMPDIR:-$venv/tmp} conf/pip_install.sh "$log" "$venv/bin/python" \
        --constraint "$constraints" "$@"
}

# ---- the environment ---------------------------------------------------------------------------

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# setuptools warns of every editable installation; that is no news here.
export PYTHONWARNINGS=ignore
# pip does not compile (see pip_install.sh), so that Python must keep what it compiles.
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

if [ -e "$half_done" ] || [ "$(version_of "$venv/bin/python")" != "$(version_of "$python")" ] ||
    ! head -n 1 "$venv/bin/pip" 2>/dev/null | grep -qF "$venv/bin/python"; then
    rm -rf "$venv"
    make_environment() {
        mkdir "$venv" && touch "$half_done" && "$python" -m venv "$venv" >"$log" 2>&1
    }
    start make_environment
    wait "${running[0]}" ||
        fail "$python could not make an environment in $venv: $(tail -n 1 "$log" 2>/dev/null ||
            echo 'that folder cannot be written'); see to its disk and rights, and run it again."
    running=()
fi
# Tools for testing that are there move with the pins.
[ "$(cut -d ' ' -f 1 "$stamp" 2>/dev/null)" != testing ] || level=testing
packages=(-e ".[$extras]")
if [ "$level" = testing ]; then
    packages=(-e ".[$extras,dev]")
    # Horovod's own estimators run where petastorm does, and import tensorboard.
    if [ "$lane" = classic ]; then packages+=(tensorboard); else packages+=('pyspark[connect]'); fi
fi
started_with=$(inputs)
# Asked now, so that a missing compiler is told before some minutes of downloads.
conf/horovod/build.sh --check --python "$venv/bin/python"

say "installing packages for $level, some minutes the first time"
touch "$half_done"
start install pip setuptools wheel
wait "${running[0]}" || exit 1
running=()

# pip uses one core. The two that take longest need none of the same packages, and so come side by
# side; what pyspark needs comes with the rest.
install_pyspark() {
    log=$venv/pip-pyspark.log
    install --no-build-isolation --no-deps --requirement conf/pyspark.txt
}
start or_end_all install_pyspark
start or_end_all install torch
wait "${running[1]}" || exit 1

# Horovod's build needs nothing but torch, and so runs beside the rest of pip's work.
build_horovod() {
    conf/horovod/build.sh --wheel-only --python "$venv/bin/python" >"$venv/horovod-wheel"
}
# Python compiles what it imports first: torch now, and not in all ranks of the first training.
import_torch() { "$venv/bin/python" -c 'import torch._dynamo' >/dev/null 2>&1 || true; }
start or_end_all build_horovod
start import_torch
wait "${running[0]}" || exit 1
# By name what the wheel asks for, since the wheel itself comes later.
start install --no-build-isolation --requirement conf/pyspark.txt "${packages[@]}" cffi packaging pyyaml
wait "${running[-1]}" || exit 1
rm "$half_done"
echo "$level" >"$stamp"
for process in "${running[@]}"; do wait "$process" || exit 1; done
running=()

# Forced: a Horovod of the same version, built for another torch, may be there.
install --no-deps --force-reinstall "$(cat "$venv/horovod-wheel")"
"$venv/bin/python" -c 'import horovod.torch' >&2 ||
    fail "$(cat "$venv/horovod-wheel") does not load (see above); remove it to build it anew."
conf/java_home.sh "$lane" "$venv" >"$venv/java-home"
"$venv/bin/python" -m pip check >&2 || fail "the packages do not fit together (see above)."
rm -rf "$venv/tmp"
echo "$level $started_with" >"$stamp"
say "ready, with $("$venv/bin/python" -V) and Java at $(cat "$venv/java-home")"
