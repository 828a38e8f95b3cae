#!/bin/bash
# In place of the entry point of Spark's own image, which pip's Spark has not: the same arguments and
# variables.
# usage: entrypoint.sh driver ARGUMENTS... | executor
set -euo pipefail

# The user has a number, and Hadoop asks for its name.
for library in /usr/lib/*/libnss_wrapper.so; do
    NSS_WRAPPER_PASSWD=$(mktemp) NSS_WRAPPER_GROUP=$(mktemp)
    echo "spark:x:$(id -u):$(id -g):spark:$SPARK_HOME:/bin/false" >"$NSS_WRAPPER_PASSWD"
    echo "spark:x:$(id -g):" >"$NSS_WRAPPER_GROUP"
    export LD_PRELOAD=$library NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP
done

role=$1
shift
case $role in
    driver)
        exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
            --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
            --deploy-mode client "$@"
        ;;
    executor)
        mapfile -t options < <(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')
        exec tini -s -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
            --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
            --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
        ;;
    *)
        exec tini -s -- "$role" "$@"
        ;;
esac
