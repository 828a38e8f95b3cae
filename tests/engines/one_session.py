"""A job that uses the runner in several ways, one after another, in one session of Spark.

Its argument is a folder that all pods share.
"""

from __future__ import annotations

import argparse

from estimate import fit
from pyspark.sql import SparkSession

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.cli import main
from sparkdl_runner.errors import LaunchError

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--tracking", nargs=2)
    options = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    config = RunConfig(slot_wait_seconds=1, tracking=None)
    try:
        DistributedRunner(num_proc=3, run_config=config).run(print)
    except LaunchError as refusal:
        print(refusal)
    for job in ("train", "tune"):
        also = ["--tracking", *options.tracking, "--config", f"{options.folder}/{job}.yaml"]
        print(f"{job} ends with {main([job, *also])}")
    fit(spark, f"file://{options.folder}/cache")
    spark.stop()
