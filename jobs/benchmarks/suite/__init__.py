"""Measures cases, sums them up and shows them."""
