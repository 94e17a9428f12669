"""The second factor: authenticator apps, passkeys and recovery codes."""
