"""What one process does for all: send emails and run the schedule."""
