"""What a benchmark does to this host: namespaces, memory, and what is left behind."""
