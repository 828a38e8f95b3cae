#!/usr/bin/env bash
# Starts the master of a standalone cluster on this host, in the foreground: let systemd, or your
# own way of running services, keep it.
#
#   SPARK_LOCAL_IP=10.0.0.1 SECRET_FILE=~/cluster.secret conf/standalone/start_master.sh
set -euo pipefail
# shellcheck source=SCRIPTDIR/checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

[ $# -eq 0 ] || fail "takes no arguments, its settings are environment variables; found '$*'."
check_address
check_secret
find_spark
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
    --host "$SPARK_LOCAL_IP" --properties-file "$SECRET_FILE"
