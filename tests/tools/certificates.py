"""Certificates for one test: an authority, and what it signs.  Nothing of it is secret."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)

SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""What Python 3.13 and newer want of an authority."""


def subject(**parts: str) -> x509.Name:
    names = {"O": NameOID.ORGANIZATION_NAME, "CN": NameOID.COMMON_NAME}
    return x509.Name([x509.NameAttribute(names[key], text) for key, text in parts.items()])


@dataclass
class Pair:
    cert: Path
    key: Path


class Authority:
    def __init__(
        self, directory: Path, name: str = "authority", *, whose: x509.Name | None = None
    ) -> None:
        self._directory = directory
        self._days = (-1, 1)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = subject(O="Example", CN=name) if whose is None else whose
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(SIGNS, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.cert = directory / f"{name}.pem"
        self.cert.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, serial: int | None = None
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial or x509.random_serial_number())
            .not_valid_before(now + self._days[0] * DAY)
            .not_valid_after(now + self._days[1] * DAY)
            # Python 3.13 and newer want to know which of an authority's keys has signed.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )

    def _write(self, name: str, certificate: x509.Certificate, key: object) -> Pair:
        pair = Pair(self._directory / f"{name}.cert.pem", self._directory / f"{name}.key.pem")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(  # type: ignore[attr-defined]
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def server(self, name: str = "server", *hosts: str) -> Pair:
        """A server's certificate for ``hosts`` (default: localhost and 127.0.0.1)."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._builder(subject(O="Example", CN=name), key)
            .add_extension(
                x509.SubjectAlternativeName(
                    [_general_name(host) for host in hosts or ("localhost", "127.0.0.1")]
                ),
                critical=False,
            )
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return self._write(name, certificate, key)

    def expired(self, name: str = "expired", *hosts: str) -> Pair:
        self._days = (-9, -1)
        try:
            return self.server(name, *hosts)
        finally:
            self._days = (-1, 1)

    def client(
        self,
        name: str = "web-1",
        *,
        whose: x509.Name | None = None,
        also: Sequence[x509.GeneralName] = (),
        serial: int | None = None,
        instead: tuple[bytes, bytes] | None = None,
    ) -> Pair:
        """A client's certificate; its subject is ``whose``, or ``O=Example,CN=NAME``.

        Of two texts of the same length, ``instead``, the second stands where the first would:
        the authority signs what no library would write.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(
            subject(O="Example", CN=name) if whose is None else whose, key, serial
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        if also:
            builder = builder.add_extension(x509.SubjectAlternativeName(also), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = self._write(name, certificate, key)
        if instead is not None:
            old = certificate.tbs_certificate_bytes
            assert instead[0] in old
            assert len(instead[0]) == len(instead[1])
            new = old.replace(*instead)
            signature = self._key.sign(new, ec.ECDSA(hashes.SHA256()))
            whole = certificate.public_bytes(serialization.Encoding.DER)
            kind = whole[4 + len(old) : -len(certificate.signature) - 3]
            body = new + kind + bytes([3, len(signature) + 1, 0]) + signature
            whole = b"\x30\x82" + len(body).to_bytes(2) + body
            pair.cert.write_text(ssl.DER_cert_to_PEM_cert(whole))
        return pair


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
