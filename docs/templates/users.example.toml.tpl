## All keys of users.toml with their defaults. A key that has no default shows an example. A relative path starts at the
## folder of this file. Secrets are better kept in the environment, or in a file that a variable ending in _FILE names.
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
# {{key.name.rpartition(".")[2]}} = {{in_toml(key.default)}}
% end
% end
% end
