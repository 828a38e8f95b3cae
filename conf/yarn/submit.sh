#!/usr/bin/env bash
# Submits a job to YARN, with the Python environment that its driver and its executors are to use.
# usage: submit.sh [SPARK-SUBMIT OPTIONS] SCRIPT [ARGUMENTS]
#
#   conf/pack_environment.sh environment.tar.gz
#   ENVIRONMENT=environment.tar.gz conf/yarn/submit.sh --files train.yaml \
#       jobs/train.py --config train.yaml
#
# Environment variables:
#   HADOOP_CONF_DIR   the cluster's configuration (or YARN_CONF_DIR)
#   ENVIRONMENT       the packed environment, here or on the cluster's file system (hdfs://...)
#   SPARK_ARCHIVE     Spark's jars on the cluster's file system, as conf/yarn/put_jars.sh has put them
#                     there; without it, each submission uploads them (some 300 MB)
#   SPARK_DEFAULTS    settings; default conf/spark/spark-defaults.conf, for GPUs one of the others
#   YARN_QUEUE        default "default"
#   NODE_LABEL        which hosts executors may run on, where the cluster has labels
#   DEPLOY_MODE       cluster (default: the driver runs on YARN too, and nothing hangs on this
#                     shell) or client (it runs here, on the Python of this shell)
set -euo pipefail

fail() {
    printf 'submit.sh: %s\n' "$*" >&2
    exit 2
}

conf=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
defaults=${SPARK_DEFAULTS:-$conf/spark/spark-defaults.conf}
mode=${DEPLOY_MODE:-cluster}

[ $# -gt 0 ] || fail "name the script to run, as in: submit.sh jobs/train.py --config train.yaml"
[ -d "${HADOOP_CONF_DIR:-${YARN_CONF_DIR:-}}" ] || fail "set HADOOP_CONF_DIR to the folder with the" \
    "cluster's yarn-site.xml and core-site.xml (it is '${HADOOP_CONF_DIR:-${YARN_CONF_DIR:-}}')."
case ${ENVIRONMENT:-} in
    *://*) ;;
    *) [ -r "${ENVIRONMENT:-}" ] || fail "set ENVIRONMENT to the packed environment;" \
        "conf/pack_environment.sh environment.tar.gz makes one (it is '${ENVIRONMENT:-}')." ;;
esac
[ -r "$defaults" ] || fail "cannot read SPARK_DEFAULTS, $defaults."
spark_submit=${SPARK_HOME:+$SPARK_HOME/bin/}spark-submit
command -v "$spark_submit" >/dev/null || fail "found no $spark_submit: set SPARK_HOME to Spark's" \
    "own folder, or put its bin on the PATH."

python=./environment/bin/python
options=(
    --queue "${YARN_QUEUE:-default}"
    --archives "$ENVIRONMENT#environment"
)
case $mode in
    cluster)
        # Spark would give these to the driver's container, which does not have this shell's Python.
        unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
        options+=(
            --conf "spark.yarn.appMasterEnv.PYSPARK_PYTHON=$python"
            # YARN would start the whole driver again, and with it a second MLflow run. What can be
            # gone on with is started again by the run itself (max_restarts). In client mode the
            # driver keeps running, so a lost application master may be started again.
            --conf spark.yarn.maxAppAttempts=1
        )
        ;;
    client)
        export PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=${PYSPARK_DRIVER_PYTHON:-python3}
        # YARN allows two application masters (or yarn.resourcemanager.am.max-attempts). A training
        # of days may lose more than one: only those of the last hour count.
        options+=(--conf spark.yarn.am.attemptFailuresValidityInterval=1h)
        ;;
    *) fail "DEPLOY_MODE is '$mode'; it can be cluster or client." ;;
esac
[ -z "${SPARK_ARCHIVE:-}" ] || options+=(--conf "spark.yarn.archive=$SPARK_ARCHIVE")
[ -z "${NODE_LABEL:-}" ] || options+=(--conf "spark.yarn.executor.nodeLabelExpression=$NODE_LABEL")
if grep -q '^spark\.executor\.resource\.gpu\.amount ' "$defaults"; then
    # YARN confines a container to its GPUs (resource type yarn.io/gpu, with cgroups), and the
    # executor asks the script which those are. Merged with what --files names.
    options+=(
        --conf "spark.yarn.dist.files=$conf/spark/discover_gpus.sh"
        --conf spark.executor.resource.gpu.discoveryScript=./discover_gpus.sh
    )
fi

# Where the logging comes from; Spark takes it along to YARN.
export SPARK_CONF_DIR=${SPARK_CONF_DIR:-$conf/spark}
exec "$spark_submit" --master yarn --deploy-mode "$mode" --properties-file "$defaults" \
    "${options[@]}" "$@"
