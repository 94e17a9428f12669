"""An authenticator in software: it makes passkeys and uses them, and does it wrongly where a test asks for that."""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from fido2 import cbor
from fido2.cose import CoseKey

ES256, EDDSA, RS256 = -7, -8, -257
UP, UV, BE, BS, AT, ED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80
MAKE: dict[int, Callable[[], Any]] = {
    ES256: lambda: ec.generate_private_key(ec.SECP256R1()),
    EDDSA: ed25519.Ed25519PrivateKey.generate,
    RS256: lambda: rsa.generate_private_key(65537, 2048),
}
SIGN: dict[int, tuple[Any, ...]] = {
    ES256: (ec.ECDSA(hashes.SHA256()),),
    EDDSA: (),
    RS256: (padding.PKCS1v15(), hashes.SHA256()),
}


def in_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class Kept:
    """A passkey as its authenticator keeps it."""

    id: bytes
    key: Any
    algorithm: int
    rp_id: str
    user_handle: bytes
    count: int

    @property
    def cose(self) -> bytes:
        public: Any = self.key.public_key()
        return cbor.encode(dict(CoseKey.for_alg(self.algorithm).from_cryptography_key(public)))


@dataclass
class Authenticator:
    """`origin`: of the page in its browser. What `create` and `get` are given in `changes` they say instead of the truth:
    `type`, `challenge`, `origin`, `crossOrigin`, `topOrigin`, `rp_id`, `flags`, `count`, `user_handle`, `id`, `format`,
    `statement`, `extensions`, `cose`."""

    origin: str
    algorithm: int = ES256
    synced: bool = False
    counts: bool = True
    passkeys: list[Kept] = field(default_factory=list)

    @property
    def flags(self) -> int:
        return UP | UV | (BE | BS if self.synced else 0)

    def create(self, options: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """What `navigator.credentials.create()` returns for the value of `publicKey`."""
        assert self.algorithm in [each["alg"] for each in options["pubKeyCredParams"]]
        kept = Kept(
            secrets.token_bytes(20),
            MAKE[self.algorithm](),
            self.algorithm,
            options["rp"]["id"],
            from_base64(options["user"]["id"]),
            int(self.counts),
        )
        self.passkeys.append(kept)
        name = changes.get("id", kept.id)
        attested = bytes(16) + len(name).to_bytes(2, "big") + name + changes.get("cose", kept.cose)
        data = self._data(kept, changes, self.flags | AT, attested)
        attestation = {
            "fmt": changes.get("format", "none"),
            "attStmt": changes.get("statement", {}),
            "authData": data,
        }
        return _credential(
            name,
            clientDataJSON=self._client_data("webauthn.create", options, changes),
            attestationObject=cbor.encode(attestation),
        )

    def get(self, options: dict[str, Any], kept: Kept | None = None, **changes: Any) -> dict[str, Any]:
        """What `navigator.credentials.get()` returns; without `kept` for the newest passkey that the options allow."""
        if kept is None:
            allowed = [from_base64(each["id"]) for each in options.get("allowCredentials", [])]
            kept = next(each for each in reversed(self.passkeys) if not allowed or each.id in allowed)
        kept.count += int(self.counts)
        data = self._data(kept, changes, self.flags, b"")
        client_data = self._client_data("webauthn.get", options, changes)
        signed = data + hashlib.sha256(client_data).digest()
        handle = changes.get("user_handle", kept.user_handle)
        return _credential(
            changes.get("id", kept.id),
            clientDataJSON=client_data,
            authenticatorData=data,
            signature=kept.key.sign(signed, *SIGN[kept.algorithm]),
            **({} if handle is None else {"userHandle": handle}),
        )

    def _data(self, kept: Kept, changes: dict[str, Any], flags: int, attested: bytes) -> bytes:
        rp_id = changes.get("rp_id", kept.rp_id)
        extensions = changes.get("extensions", b"")
        flags = changes.get("flags", flags | (ED if extensions else 0))
        count = changes.get("count", kept.count)
        start = hashlib.sha256(rp_id.encode()).digest() + bytes([flags]) + count.to_bytes(4, "big")
        return start + attested + extensions

    def _client_data(self, kind: str, options: dict[str, Any], changes: dict[str, Any]) -> bytes:
        said = {"type": kind, "challenge": options["challenge"], "origin": self.origin, "crossOrigin": False}
        names = (*said, "topOrigin")
        said |= {name: value for name, value in changes.items() if name in names}
        return json.dumps(said, separators=(",", ":")).encode()


def _credential(name: bytes, **response: bytes) -> dict[str, Any]:
    return {
        "id": in_base64(name),
        "rawId": in_base64(name),
        "type": "public-key",
        "authenticatorAttachment": "platform",
        "clientExtensionResults": {},
        "response": {key: in_base64(value) for key, value in response.items()},
    }
