<!-- {{notice}} -->

# Configuration keys

How the file is found and which value wins: [Configure](../operating/configure.md). On the command line,
`usersctl config explain [KEY]` prints the same. A relative path starts at the folder of the configuration
file. [users.example.toml](../../daemon/users.example.toml) has all keys.
% for name, keys in tables().items():

## {{f"`[{name}]`" if name else "Top level"}}

% rows = [(key.name, key.kind.name, default(key), key.help.replace("*", "\\*")) for key in keys]
{{table(("key", "type", "default", "meaning"), rows)}}
% end

## Environment

{{table(("variable", "stands for"), environment())}}
