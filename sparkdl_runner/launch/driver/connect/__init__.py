"""Ranks on a Spark that is reached by Spark Connect: there is no JVM beside the user."""
