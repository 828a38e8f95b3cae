"""Lets Spark make the pods of a submission, as it would for a cluster. Started as a process.

Reads what ``conf/kubernetes/submit.sh`` gives to spark-submit, as a JSON object of settings, from
the standard input. Prints the driver's and an executor's pod as JSON.
"""

import json
import sys

from pyspark import SparkConf, SparkContext


def main() -> None:
    settings = json.load(sys.stdin)
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False))
    jvm = SparkContext._jvm
    k8s = jvm.org.apache.spark.deploy.k8s
    conf = jvm.org.apache.spark.SparkConf(False)
    for key, value in settings.items():
        conf.set(key, value)
    # Spark's own parser of templates; it connects to nothing.
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    nothing = jvm.scala.Option.apply(None)

    script = k8s.submit.PythonMainAppResource("local:///opt/sparkdl-runner/jobs/train.py")
    arguments = SparkContext._gateway.new_array(jvm.java.lang.String, 0)
    driver = k8s.submit.KubernetesDriverBuilder().buildFromFeatures(
        k8s.KubernetesConf.createDriverConf(
            conf, "spark-1", script, "org.apache.spark.deploy.PythonRunner", arguments, nothing
        ),
        client,
    )

    # What the driver adds when it runs.
    conf.set("spark.driver.host", "driver.training.svc").set("spark.driver.port", "7078")
    secret_file = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(
        "spark.authenticate.secret.file"
    )
    security = jvm.org.apache.spark.SecurityManager(conf, nothing, secret_file)
    security.initializeAuth()
    profiles = jvm.java.lang.Class.forName("org.apache.spark.resource.ResourceProfile$")
    profile = profiles.getField("MODULE$").get(None).getOrCreateDefaultProfile(conf)
    executor = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    built = executor.buildFromFeatures(
        k8s.KubernetesConf.createExecutorConf(conf, "1", "spark-1", nothing, 0),
        security,
        client,
        profile,
    )
    write = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson
    pods = {}
    for name, spec in (("driver", driver), ("executor", built)):
        pod = json.loads(write(spec.pod().pod()))
        container = json.loads(write(spec.pod().container()))
        pod["spec"].setdefault("containers", []).append(container)
        pods[name] = pod
    print(json.dumps(pods))
    client.close()


main()
