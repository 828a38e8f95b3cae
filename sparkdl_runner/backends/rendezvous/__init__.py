"""Where Horovod's ranks find one another: a key-value store, and each host's copy of it."""
