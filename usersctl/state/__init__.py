"""Desired state: a file says which accounts and groups there are, and `usersctl apply` makes it so."""
