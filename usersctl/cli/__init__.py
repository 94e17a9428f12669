"""`usersctl`: the operator's command. One file for each topic; data on stdout, everything else on stderr."""
