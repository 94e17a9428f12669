"""The daemon: the HTTP interface of a users database."""
