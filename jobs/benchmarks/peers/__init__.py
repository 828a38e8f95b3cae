"""Calls the libraries that this package is compared with. Two files call this package as well."""
