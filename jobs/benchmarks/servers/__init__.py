"""Servers on this host, for as long as a measurement lasts."""
