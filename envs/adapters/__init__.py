"""Adapters that offer the games through the interfaces of other libraries."""
