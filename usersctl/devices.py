"""Devices that signed in before: a cookie, signed by the service, names the accounts and when. It opens no session."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from usersctl.clock import CLOCKS_DIFFER, stamp
from usersctl.errors import Busy, StoreUnusable
from usersctl.models import Device, Purpose
from usersctl.named import NamedTuple
from usersctl.secrets import digest, new_device_id, new_token, sign, verified
from usersctl.store.signing_keys import COOKIES
from usersctl.store.store import Store
from usersctl.store.transaction import Transaction

PURPOSE = "device"
KNOWN_FOR = timedelta(days=365)
MOST_ACCOUNTS = 5  # of one browser; the account that signed in least recently is forgotten


class Devices(NamedTuple):
    store: Store

    def read(self, cookies: Iterable[str]) -> list[Device]:
        """What genuine cookies say, the latest sign-in first. A reset may have ended it: see throttle.counter_of."""
        return self._read(self.store.signing_key(COOKIES), cookies)

    def _read(self, key: bytes, cookies: Iterable[str]) -> list[Device]:
        oldest = stamp(self.store.clock() - KNOWN_FOR)
        texts = filter(None, (verified(key, PURPOSE, cookie) for cookie in cookies))
        devices = [_device_of(entry) for text in texts for entry in text.split("/")]
        return [device for device in devices if device.since > oldest]

    def is_remembered(
        self, tx: Transaction, user_id: int, cookies: Iterable[str], lifetime: timedelta
    ) -> bool:
        """Whether the user proved a second factor with this browser, asked to be remembered, and nothing has ended that."""
        key = tx.signing_key(COOKIES)
        if key is None or not lifetime:
            return False
        devices = [device for device in self._read(key, cookies) if device.user_id == user_id]
        oldest = max(stamp(tx.now - lifetime), tx.remembered_since(user_id))
        # A proof further in the future is none: the clock was set back.
        latest = stamp(tx.now + CLOCKS_DIFFER)
        return any(oldest < device.factor_at <= latest and _is_genuine(tx, device) for device in devices)

    def cookie(
        self, sent: Iterable[str], user_id: int, since: str, *, remember_for: timedelta | None = None
    ) -> str:
        """The value to set after a sign-in at `since`. Other accounts that signed in with this browser stay in it.

        `remember_for`: the user proved a second factor in it, and asked to be remembered; without it, an earlier proof stays.
        """
        present = self.read(sent)
        others = [device for device in present if device.user_id != user_id]
        proofs = [(device.factor_at, device.secret) for device in present if device.user_id == user_id]
        factor_at, secret = max(proofs, default=("", ""))
        if remember_for:
            factor_at, secret = since, self._new_secret(user_id, since, remember_for)
        devices = [Device(user_id, new_device_id(), since, factor_at, secret), *others[: MOST_ACCOUNTS - 1]]
        text = "/".join("~".join(map(str, device)).rstrip("~") for device in devices)
        return sign(self.store.signing_key(COOKIES), PURPOSE, text)

    def _new_secret(self, user_id: int, factor_at: str, lifetime: timedelta) -> str:
        """Of which the database has the digest only: the key that signs the cookie is in every backup."""
        secret = new_token()
        # The sign-in has succeeded. Where this cannot be noted, the next one asks for the second factor again.
        with suppress(Busy, StoreUnusable), self.store.write() as tx:
            if tx.user(user_id) is not None:
                tx.add_one_time_token(
                    digest(secret), Purpose.REMEMBERED, lifetime, user_id=user_id, about=factor_at
                )
        return secret


def _is_genuine(tx: Transaction, device: Device) -> bool:
    noted = tx.one_time_token(Purpose.REMEMBERED, digest(device.secret))
    return noted is not None and (noted.user_id, noted.about) == (device.user_id, device.factor_at)


def _device_of(entry: str) -> Device:
    user_id, device_id, since, *more = entry.split("~")
    return Device(int(user_id), device_id, since, *more)
