#!/usr/bin/env bash
# Submits a job to a standalone cluster, with the Python environment that its executors are to use.
# The driver runs here, in the foreground, on the Python of this shell, which needs the same packages.
# usage: submit.sh [SPARK-SUBMIT OPTIONS] SCRIPT [ARGUMENTS]
#
#   conf/pack_environment.sh environment.tar.gz
#   SPARK_LOCAL_IP=10.0.0.1 SECRET_FILE=~/cluster.secret MASTER_URL=spark://10.0.0.1:7077 \
#       ENVIRONMENT=environment.tar.gz conf/standalone/submit.sh jobs/train.py --config train.yaml
#
# SPARK_DEFAULTS names another file of settings than conf/spark/spark-defaults.conf.
set -euo pipefail
# shellcheck source=SCRIPTDIR/checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

[ $# -gt 0 ] || fail "name the script to run, as in: submit.sh jobs/train.py --config train.yaml"
check_address
check_secret
check_master_url
[ -r "${ENVIRONMENT:-}" ] || fail "set ENVIRONMENT to the packed environment for the executors;" \
    "conf/pack_environment.sh environment.tar.gz makes one (it is '${ENVIRONMENT:-}')."
defaults=${SPARK_DEFAULTS:-$conf/spark/spark-defaults.conf}
[ -r "$defaults" ] || fail "cannot read SPARK_DEFAULTS, $defaults."
find_spark

# Spark reads one file of settings, and no setting may be an argument, which every user of this host
# sees: both files may hold secrets. Spark gets them as a file of ours alone that has no name any more,
# so nothing is left of it, however this ends. Of two lines for one setting Spark takes the last.
settings=$(mktemp) || fail "cannot write a temporary file; set TMPDIR to a folder with room."
{ cat "$defaults" && echo && cat "$SECRET_FILE"; } >"$settings" ||
    { rm -f "$settings" && fail "cannot write $settings; set TMPDIR to a folder with room."; }
exec 9<"$settings"
rm "$settings"

# What executors start, each in the folder where it unpacked the archive; the driver has its own.
export PYSPARK_PYTHON=./environment/bin/python
export PYSPARK_DRIVER_PYTHON=${PYSPARK_DRIVER_PYTHON:-python3}
exec "$SPARK_HOME/bin/spark-submit" --master "$MASTER_URL" --properties-file /dev/fd/9 \
    --conf "spark.driver.host=$SPARK_LOCAL_IP" \
    --conf "spark.driver.bindAddress=$SPARK_LOCAL_IP" \
    --archives "$ENVIRONMENT#environment" "$@"
