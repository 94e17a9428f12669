## All keys of users.toml with their defaults. A key that has no default shows an example.
## Remove "# " from the lines that you change, and from their [table]; then run: usersctl config check
% for name, keys in tables().items():

% if name:
# [{{name}}]
% end
% for key in keys:
{{comment(key.help)}}
% if key.variables:
{{comment(f"Environment: {' or '.join(key.variables)}.")}}
% end
% if key.default is None:
# {{key.name.rpartition(".")[2]}} = {{json.dumps(key.example)}}  # an example
% else:
# {{key.name.rpartition(".")[2]}} = {{json.dumps(key.default)}}
% end
% end
% end
