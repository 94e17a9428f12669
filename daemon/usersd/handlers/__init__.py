"""One file for each topic of the HTTP interface."""
