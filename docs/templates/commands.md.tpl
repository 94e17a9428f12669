<!-- {{notice}} -->

# Commands

What holds for every command: [The command](../command.md). `usersctl COMMAND --help` prints the same, and
`usersctl --help` the exit codes in short.

## Global options

They work before and after the name of the command.

{{table(("option", "meaning"), global_options)}}

## Exit codes

{{table(("code", "meaning"), exit_codes)}}
% for panel, rows in commands.items():

## {{panel}}
% for name, *_ in rows:
% command = command_at(name)

### usersctl {{name}}

{{command.help}}

```
{{synopsis(name)}}
```

% if parameters(name):
{{table(("argument or option", "meaning"), parameters(name))}}

% end
Example: `{{command.epilog.removeprefix("Example: ")}}`
% end
% end
