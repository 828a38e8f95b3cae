"""The jobs for ``spark-submit``: convert, train, score and tune, from a checked configuration.

Each job is one file that says what it does; its settings are its YAML keys and its flags. They
stand on everything else in this package, and nothing else knows of them.
"""
