"""Emails: which kinds there are, the outbox, how they are written and sent."""
