#!/usr/bin/env bash
# Tries this package in other environments, each in a folder of its own below .venv-compat:
#   mlflow-VERSION    another MLflow, with all else (torch, Spark, pytest) from the classic lane
#   NAME              what tests/compat/NAME.txt asks for; its first line names the Python
# usage: compat.sh [environment …]        (all of them without one)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
lane=$PWD/.venv/bin/python
folder=$(mktemp -d)
server='' spark_server=''
# The folder goes last: servers write there until they have ended.
trap '[ -z "$server$spark_server" ] || { kill $server $spark_server; wait; }; rm -rf "$folder"' EXIT

say() { printf 'compat: %s\n' "$*" >&2; }
packages_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

asked=("$@")
if [ $# -eq 0 ]; then
    set -- mlflow-2.13.1 mlflow-2.21.3 mlflow-3.0.1 mlflow-3.8.1
    for file in tests/compat/*.txt; do set -- "$@" "$(basename "$file" .txt)"; done
fi

# Prints the Python that an environment is made with; nothing where there is none.
python_for() {
    local name=$lane
    case $1 in mlflow-*) ;; *) name=$(sed -n '1s/^# //p' "tests/compat/$1.txt") ;; esac
    # Asked, since a shim on the PATH may have nothing behind it.
    if "$name" -c 'import venv' 2>/dev/null; then command -v "$name"; fi
}

make_environment() {
    local venv=$PWD/.venv-compat/$1 wanted=("mlflow==${1#mlflow-}") files=(setup.cfg) inputs
    case $1 in
        mlflow-*) ;;
        *)
            wanted=(--requirement "tests/compat/$1.txt" pytest pytest-timeout hypothesis)
            files+=("tests/compat/$1.txt" conf/constraints-modern.txt)
            ;;
    esac
    inputs=$(cat "${files[@]}" | sha256sum)
    [ "$(cat "$venv/set-up-done" 2>/dev/null)" != "$inputs" ] || return 0
    say "installing $1"
    # One that was left half-way is taken up: torch alone may be some GB.
    [ -x "$venv/bin/python" ] || "$2" -m venv --without-pip "$venv"
    case $1 in
        # pip finds what is there already, and installs beside it what this MLflow wants otherwise.
        mlflow-*) printf '%s\n' "$(packages_of "$lane")" "$PWD" >"$(packages_of "$venv/bin/python")/lane.pth" ;;
    esac
    "$lane" -m pip --python "$venv/bin/python" install --quiet --no-compile "${wanted[@]}"
    echo "$inputs" >"$venv/set-up-done"
}

# The lane's own server: what differs between environments is the client.
start_server() {
    "$lane" jobs/benchmarks/servers/tracking_server.py "$folder" >"$folder/url" 2>"$folder/server.err" &
    server=$!
    while [ ! -s "$folder/url" ]; do
        kill -0 "$server" 2>/dev/null || { cat "$folder/server.err" >&2 && exit 1; }
        sleep 0.2
    done
}

# For a client of Spark Connect, which has neither Spark's own server nor Java.
start_spark_server() {
    [ -z "$spark_server" ] || return 0
    JAVA_HOME=$(cat .venv-modern/java-home) .venv-modern/bin/python tests/compat/spark_server.py \
        "$folder" >"$folder/spark-url" &
    spark_server=$!
    while [ ! -s "$folder/spark-url" ]; do
        kill -0 "$spark_server" 2>/dev/null || { cat "$folder/server.log" >&2 && exit 1; }
        sleep 0.2
    done
}

# All parts run, whatever the first of them says.
try() {
    local python=$PWD/.venv-compat/$1/bin/python wrong=0
    case $1 in
        mlflow-*) ;;
        ai-runtime-*)
            start_spark_server
            env -u JAVA_HOME SPARK_REMOTE="$(cat "$folder/spark-url")" \
                "$python" tests/compat/environment.py || wrong=1
            ;;
        *)
            local spark
            spark=$("$python" -c 'import pyspark; print(pyspark.__version__.split(".")[0])')
            JAVA_HOME=$(conf/java_home.sh "$([ "$spark" = 3 ] && echo classic || echo modern)" \
                "$PWD/.venv-compat/$1") PYSPARK_PYTHON=$python \
                "$python" tests/compat/environment.py || wrong=1
            ;;
    esac
    MLFLOW_TRACKING_URI=$(cat "$folder/url") "$python" tests/compat/tracked_training.py || wrong=1
    case $1 in
        ai-runtime-*) ;; # The tests' fixtures need a whole Spark; databricks-18 has the same MLflow.
        *) "$python" -m pytest tests/integration/test_plain_calls.py -q -p no:cacheprovider || wrong=1 ;;
    esac
    return $wrong
}

failed=() left_out=()
start_server
for name in "$@"; do
    case $name in
        mlflow-*) ;;
        *) [ -f "tests/compat/$name.txt" ] || { say "there is no tests/compat/$name.txt" && exit 2; } ;;
    esac
    python=$(python_for "$name")
    if [ -z "$python" ]; then
        say "$name is left out: there is no $(sed -n '1s/^# //p' "tests/compat/$name.txt")"
        left_out+=("$name")
        continue
    fi
    make_environment "$name" "$python"
    say "$name"
    try "$name" || failed+=("$name")
done
[ ${#left_out[@]} -eq 0 ] || say "left out, for want of their Python: ${left_out[*]}"
[ ${#failed[@]} -eq 0 ] || { say "failed: ${failed[*]}" && exit 1; }
# Who asks for one by name wants to know.
[ ${#asked[@]} -eq 0 ] || [ ${#left_out[@]} -eq 0 ] || exit 1
