"""How a command shows its results: tables, lists, findings, JSON."""
