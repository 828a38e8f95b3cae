"""What torch's tests take from ``expecttest``, where it is not installed: a base class."""

from unittest import TestCase as TestCase
