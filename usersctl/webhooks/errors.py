"""Why an event did not reach its receiver, in words for an operator."""


class NotDelivered(Exception):
    """Its message holds nothing that the receiver said, and no secret."""
