"""The rendezvous of Horovod's ranks: a key-value store, and each host's copy of it."""
