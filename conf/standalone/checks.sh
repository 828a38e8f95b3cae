# shellcheck shell=bash
# Read by the scripts beside it: what a master, a worker and a submission need alike.
#
# Their settings are environment variables, those of Spark itself where it has one (SPARK_HOME,
# SPARK_LOCAL_IP, SPARK_MASTER_PORT, SPARK_WORKER_CORES, SPARK_WORKER_MEMORY, SPARK_WORKER_DIR ...).

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

conf=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Sets SPARK_HOME, and the folder from which all processes that are started take their logging.
find_spark() {
    local python=${PYSPARK_DRIVER_PYTHON:-python3}
    if [ -z "${SPARK_HOME:-}" ]; then
        SPARK_HOME=$("$python" -c 'import os, pyspark
print(os.path.dirname(pyspark.__file__))' 2>/dev/null) || fail "found no Spark: set SPARK_HOME to" \
            "its folder, or activate an environment in which pyspark is installed."
    fi
    [ -x "$SPARK_HOME/bin/spark-class" ] || fail "SPARK_HOME is $SPARK_HOME, which has no" \
        "bin/spark-class; set it to Spark's own folder."
    export SPARK_HOME SPARK_CONF_DIR=${SPARK_CONF_DIR:-$conf/spark}
}

# Without an address Spark would listen on the one that the host's name leads to, and its web UI on
# all interfaces.
check_address() {
    [ -n "${SPARK_LOCAL_IP:-}" ] || fail "set SPARK_LOCAL_IP to the address of this host on which" \
        "the cluster's other hosts reach it; nothing listens on any other."
    export SPARK_LOCAL_IP
}

check_secret() {
    local mode
    [ -n "${SECRET_FILE:-}" ] || fail "set SECRET_FILE to the file with the cluster's secret;" \
        "conf/standalone/new_secret.sh makes one."
    [ -r "$SECRET_FILE" ] || fail "cannot read SECRET_FILE, $SECRET_FILE; conf/standalone/" \
        "new_secret.sh makes one, and all hosts need the same."
    mode=$(stat -Lc %a "$SECRET_FILE")
    [ $((0$mode & 077)) -eq 0 ] || fail "SECRET_FILE, $SECRET_FILE, is open to others than its" \
        "owner (mode $mode), who could run code on the cluster; chmod 600 it, and make a new one" \
        "if they may have read it."
    grep -q '^spark\.authenticate\.secret[ =]' "$SECRET_FILE" || fail "SECRET_FILE, $SECRET_FILE," \
        "has no line spark.authenticate.secret; conf/standalone/new_secret.sh makes one."
}

check_master_url() {
    case ${MASTER_URL:-} in
        spark://?*:[0-9]*) ;;
        *) fail "set MASTER_URL to the master's, spark://HOST:7077, as it says in the master's log" \
            "(it is '${MASTER_URL:-}')." ;;
    esac
}
