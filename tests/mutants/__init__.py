"""Mutation testing: small breakages of ``sparkdl_runner``, and whether the tests see them."""
