"""The table of the service's own keys, by name."""

from usersctl.store.statements import Statements

COOKIES = "cookies"  # signs them, and the challenges of passkeys
USER_HANDLES = "user-handles"  # makes the names that authenticators have for accounts


class SigningKeys(Statements):
    def signing_key(self, name: str) -> bytes | None:
        return self._value(bytes, "SELECT key FROM signing_keys WHERE name = ?", (name,))

    def make_signing_key(self, name: str) -> bytes:
        """If another process has made it meanwhile, that one stays and is returned."""
        from usersctl.secrets import new_key  # late: most commands make no key

        conflict = "ON CONFLICT (name) DO UPDATE SET key = signing_keys.key RETURNING key"
        return bytes(self._insert("signing_keys", conflict, name=name, key=new_key()).fetchone()[0])

    def delete_signing_keys(self) -> None:
        """All but the one whose loss would end all passkeys."""
        self._run("DELETE FROM signing_keys WHERE name <> ?", (USER_HANDLES,))
