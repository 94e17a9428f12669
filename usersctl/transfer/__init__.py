"""Accounts from files and to files."""
