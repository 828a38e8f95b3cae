"""``sparkdl.horovod.tensorflow`` under this package's name."""
