"""Devices that signed in before: a cookie, signed by the service, names the accounts and when. It opens no session."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from usersctl.clock import stamp
from usersctl.models import Device
from usersctl.secrets import new_device_id, sign, verified
from usersctl.store.store import Store

KEY, PURPOSE = "cookies", "device"
KNOWN_FOR = timedelta(days=365)
MOST_ACCOUNTS = 5  # of one browser; the account that signed in least recently is forgotten


@dataclass(frozen=True)
class Devices:
    store: Store

    def read(self, cookies: Iterable[str]) -> list[Device]:
        """What genuine cookies say, the latest sign-in first. A reset may have ended it: see throttle.counter_of."""
        key, oldest = self.store.signing_key(KEY), stamp(self.store.clock() - KNOWN_FOR)
        texts = filter(None, (verified(key, PURPOSE, cookie) for cookie in cookies))
        devices = [_device_of(entry) for text in texts for entry in text.split("/")]
        return [device for device in devices if device.since > oldest]

    def cookie(self, sent: Iterable[str], user_id: int, since: str) -> str:
        """The value to set after a sign-in at `since`. Other accounts that signed in with this browser stay in it."""
        others = [device for device in self.read(sent) if device.user_id != user_id]
        devices = [Device(user_id, new_device_id(), since), *others[: MOST_ACCOUNTS - 1]]
        text = "/".join(f"{device.user_id}~{device.id}~{device.since}" for device in devices)
        return sign(self.store.signing_key(KEY), PURPOSE, text)


def _device_of(entry: str) -> Device:
    user_id, device_id, since = entry.split("~")
    return Device(int(user_id), device_id, since)
