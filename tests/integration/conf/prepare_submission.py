"""Lets Spark read the arguments of spark-submit, and prints what it would start, as JSON.

Started as a process, with those arguments. Nothing is started, and no cluster is asked.
"""

import json
import os
import sys

from pyspark import SparkConf, SparkContext


def main() -> None:
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False))
    jvm = SparkContext._jvm
    environment = jvm.PythonUtils.toScalaMap(jvm.java.lang.System.getenv())
    deploy = jvm.org.apache.spark.deploy
    arguments = deploy.SparkSubmitArguments(jvm.PythonUtils.toSeq(sys.argv[1:]), environment)
    nothing = jvm.scala.Option.apply(None)
    prepared = deploy.SparkSubmit().prepareSubmitEnvironment(arguments, nothing)
    settings = {pair._1(): pair._2() for pair in prepared._3().getAll()}
    print(
        json.dumps(
            {
                "class": prepared._4(),
                "arguments": prepared._1().mkString("\n").split("\n"),
                "settings": settings,
                "pythons": [name for name in os.environ if name.startswith("PYSPARK_")],
            }
        )
    )


main()
