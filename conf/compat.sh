#!/usr/bin/env bash
# Runs a tracked training, and plain MLflow calls as ranks make them, with MLflow versions other than
# the lane's: those of Databricks' runtimes. Each has an environment of its own, which holds MLflow and
# what it cannot share, and takes all else (torch, Spark, pytest) from the classic lane.
# usage: compat.sh [version …]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -gt 0 ] || set -- 2.13.1 2.21.3 3.0.1 3.8.1
lane=$PWD/.venv/bin/python
shared=$("$lane" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

say() { printf 'compat: %s\n' "$*" >&2; }

environment_for() {
    local venv=$PWD/.venv-compat/$1
    [ ! -f "$venv/set-up-done" ] || return 0
    rm -rf "$venv"
    "$lane" -m venv --without-pip "$venv"
    # pip finds what is there already, and installs beside it what this MLflow wants otherwise.
    printf '%s\n' "$shared" "$PWD" >"$("$venv/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/lane.pth"
    "$venv/bin/python" -m pip install --quiet "mlflow==$1"
    touch "$venv/set-up-done"
}

# The lane's own server: what differs between runtimes is the client.
"$lane" jobs/benchmarks/tracking_server.py "$folder" >"$folder/url" 2>"$folder/server.err" &
server=$!
for version in "$@"; do
    say "MLflow $version"
    environment_for "$version"
done
while [ ! -s "$folder/url" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$folder/server.err" >&2 && exit 1; }
    sleep 0.2
done

failed=
for version in "$@"; do
    python=$PWD/.venv-compat/$version/bin/python
    MLFLOW_TRACKING_URI=$(cat "$folder/url") "$python" tests/compat/tracked_training.py &&
        "$python" -m pytest tests/unit/tracking/test_plain_calls.py -q -p no:cacheprovider ||
        failed="$failed $version"
done
[ -z "$failed" ] || { say "failed with MLflow$failed" && exit 1; }
