"""The second factor: authenticator apps, passkeys and recovery codes. Imported when an account has one or enrols."""
