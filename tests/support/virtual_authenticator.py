"""Chromium's virtual authenticator: a phone or a security key that answers at once, without a person."""

from typing import Any

from support.visitors import Visitor


class VirtualAuthenticator:
    """`transport`: internal for one in the device, usb for a security key. A page has one DevTools session for all of them."""

    def __init__(
        self, visitor: Visitor, *, transport: str = "internal", beside: "VirtualAuthenticator | None" = None
    ) -> None:
        self.devtools = beside.devtools if beside else visitor.context.new_cdp_session(visitor.page)
        if beside is None:
            self.devtools.send("WebAuthn.enable", {"enableUI": False})
        options = {
            "protocol": "ctap2",
            "transport": transport,
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        self.id = self._send("addVirtualAuthenticator", options=options)["authenticatorId"]

    @property
    def credentials(self) -> list[dict[str, Any]]:
        credentials: list[dict[str, Any]] = self._send("getCredentials", authenticatorId=self.id)[
            "credentials"
        ]
        return credentials

    def verifies(self, *, user: bool) -> None:
        """Whether fingerprint, face or PIN are right."""
        self._send("setUserVerified", authenticatorId=self.id, isUserVerified=user)

    def answers(self, *, at_once: bool) -> None:
        """Whether somebody touches it as soon as it is asked. A request that waits goes on waiting."""
        self._send("setAutomaticPresenceSimulation", authenticatorId=self.id, enabled=at_once)

    def is_cloned(self) -> None:
        """The copy does not know how often the original was used."""
        (credential,) = self.credentials
        self._send("clearCredentials", authenticatorId=self.id)
        self._send("addCredential", authenticatorId=self.id, credential=credential | {"signCount": 1})

    def is_gone(self) -> None:
        self._send("removeVirtualAuthenticator", authenticatorId=self.id)

    def _send(self, command: str, **parameters: Any) -> Any:
        return self.devtools.send(f"WebAuthn.{command}", parameters)


def without_suggestions(visitor: Visitor) -> None:
    """The address field suggests no passkeys from now on: the virtual authenticator takes the first suggestion."""
    visitor.page.add_init_script("PublicKeyCredential.isConditionalMediationAvailable = async () => false")
