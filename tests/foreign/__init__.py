"""Tests that other people wrote, run as ranks, and again under their own launcher."""
