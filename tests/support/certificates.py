"""Certificates for servers of tests: right ones, expired ones, and those of an authority that nobody trusts."""

import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Certificates:
    """Certificates of one test run. `authority` is the file that a client has to trust."""

    authority: Path
    folder: Path
    _sign: Callable[..., tuple[bytes, bytes]]

    def server(self, *names: str, days: int = 1, trusted: bool = True) -> ssl.SSLContext:
        """A context with a certificate for these names; with `days` < 0 it has expired."""
        certificate, key = self._sign(names or ("localhost", "127.0.0.1"), days, trusted)
        file = self.folder / f"{abs(hash((names, days, trusted)))}.pem"
        file.write_bytes(key + certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def make_certificates(folder: Path) -> Certificates:
    now = datetime.now(UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    signs_certificates = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=False,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )

    def authority(text: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            x509.CertificateBuilder(named(text), named(text), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(signs_certificates, critical=True)  # Python 3.13 asks for it
        )
        return builder.sign(key, hashes.SHA256()), key

    ours, others = authority("ours"), authority("others")

    def general(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    def sign(names: tuple[str, ...], days: int, trusted: bool) -> tuple[bytes, bytes]:
        issuer, issuer_key = ours if trusted else others
        key = ec.generate_private_key(ec.SECP256R1())
        ends = now + timedelta(days=days)
        certificate = (
            x509.CertificateBuilder(
                issuer.subject, named(names[0]), key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(min(now, ends) - timedelta(days=1))
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName([general(name) for name in names]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
            )
            .sign(issuer_key, hashes.SHA256())
        )
        return (
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    file = folder / "authority.pem"
    file.write_bytes(ours[0].public_bytes(serialization.Encoding.PEM))
    return Certificates(file, folder, sign)
