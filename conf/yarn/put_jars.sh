#!/usr/bin/env bash
# Puts Spark's jars on the cluster's file system, once for each version of Spark, so that not every
# submission uploads them. Hosts keep what they have fetched for the next application.
# usage: put_jars.sh hdfs:///shared/spark-3.5.9-jars.zip
#        SPARK_ARCHIVE=hdfs:///shared/spark-3.5.9-jars.zip conf/yarn/submit.sh ...
#
# Environment variables:
#   HADOOP_CONF_DIR   the cluster's configuration (or YARN_CONF_DIR)
#   SPARK_HOME        Spark's own folder; by default that of the Python on the PATH
set -euo pipefail

fail() {
    printf 'put_jars.sh: %s\n' "$*" >&2
    exit 2
}

case ${1:-} in
    *://*.zip) ;;
    *) fail "name where to put them, as in: put_jars.sh hdfs:///shared/spark-jars.zip" ;;
esac
[ -d "${HADOOP_CONF_DIR:-${YARN_CONF_DIR:-}}" ] || fail "set HADOOP_CONF_DIR to the folder with the" \
    "cluster's core-site.xml (it is '${HADOOP_CONF_DIR:-${YARN_CONF_DIR:-}}')."
home=${SPARK_HOME:-$(python3 -c 'import pyspark; print(pyspark.__path__[0])' 2>/dev/null)} ||
    fail "found no pyspark: set SPARK_HOME to Spark's own folder."
[ -d "$home/jars" ] || fail "there are no jars in SPARK_HOME, $home."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As they are: jars are packed already.
python3 - "$home/jars" "$work/jars.zip" <<'END'
import sys
import zipfile
from pathlib import Path

with zipfile.ZipFile(sys.argv[2], "w") as archive:
    for jar in sorted(Path(sys.argv[1]).glob("*.jar")):
        archive.write(jar, jar.name)
END
# Named after the upload, so that no application finds half of it. Others are to read it.
shell=("$home/bin/spark-class" org.apache.hadoop.fs.FsShell)
"${shell[@]}" -mkdir -p "${1%/*}"
"${shell[@]}" -put -f "$work/jars.zip" "$1.uploading"
"${shell[@]}" -chmod 644 "$1.uploading"
"${shell[@]}" -rm -f -skipTrash "$1" >/dev/null
"${shell[@]}" -mv "$1.uploading" "$1"
printf 'put_jars.sh: %s has the jars of %s\n' "$1" "$home" >&2
