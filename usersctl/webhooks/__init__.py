"""Webhooks: events are queued with their effect, and sent to the receivers of the configuration, signed."""
