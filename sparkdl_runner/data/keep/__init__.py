"""Conversions that outlast their process: equal ones find them, and leases hold them."""
