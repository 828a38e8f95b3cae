#!/usr/bin/env bash
# Starts a worker of a standalone cluster on this host, in the foreground. It offers all cores and
# most of the memory, unless SPARK_WORKER_CORES and SPARK_WORKER_MEMORY say otherwise; with --gpus
# also all GPUs that it would see itself. One worker for each host: two would offer the same GPUs.
#
#   SPARK_LOCAL_IP=10.0.0.2 SECRET_FILE=~/cluster.secret MASTER_URL=spark://10.0.0.1:7077 \
#       conf/standalone/start_worker.sh --gpus
set -euo pipefail
# shellcheck source=SCRIPTDIR/checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

check_address
check_secret
check_master_url
case $#-${1:-} in
    0-) ;;
    1---gpus)
        discovery=$conf/spark/discover_gpus.sh
        found=$("$discovery") || fail "--gpus was given, and this host has none to offer (see above)."
        commas=${found//[^,]/}
        # One comma separates the name from the addresses, the others separate addresses.
        gpus=${#commas}
        SPARK_WORKER_OPTS="${SPARK_WORKER_OPTS:-} -Dspark.worker.resource.gpu.amount=$gpus"
        export SPARK_WORKER_OPTS+=" \"-Dspark.worker.resource.gpu.discoveryScript=$discovery\""
        ;;
    *) fail "takes --gpus or nothing, its other settings are environment variables; found '$*'." ;;
esac
find_spark
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
    --host "$SPARK_LOCAL_IP" --properties-file "$SECRET_FILE" "$MASTER_URL"
