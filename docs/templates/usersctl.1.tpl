.\" {{notice}}
.TH USERSCTL 1 "" "usersctl {{version}}"
.SH NAME
usersctl \- manage the accounts, sessions and tokens of a users database
.SH SYNOPSIS
.B usersctl
[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]
.SH DESCRIPTION
{{roff(ROOT_COMMAND.help)}}
.SH OPTIONS
{{entries(global_options)}}
% for panel, rows in commands.items():
.SH {{roff(panel.upper())}}
% for name, *_ in rows:
.SS {{roff(synopsis(name))}}
{{roff(command_at(name).help)}}
% if parameters(name):
{{entries(parameters(name))}}
% end
.PP
{{roff(command_at(name).epilog)}}
% end
% end
.SH EXIT STATUS
{{entries(exit_codes)}}
.SH ENVIRONMENT
{{entries(environment())}}
.SH FILES
.TP
.B /etc/users/users.toml, $XDG_CONFIG_HOME/users/users.toml
The configuration: the first of these that exists.
.TP
.B /var/lib/users/users.db, $XDG_DATA_HOME/users/users.db
The database: of root, and of any other user.
.SH CONFIGURATION
The keys of users.toml. A relative path starts at the folder of the file.
{{entries((key.name, f"{key.help} Type: {key.kind.name}. Default: {default(key)}.") for key in KEYS.values())}}
