"""A certificate authority of one folder, and a certificate for Google's host names signed by it.

Clients that are told to trust this authority (and, by the same variables, no other) take the local cloud for Google's;
nobody else does: the authority's key is in no file, and both are valid for 30 days, longer than any rehearsal.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from rehearsal.doors.access import make_private, write_private

# A wildcard covers one label, as REGION-aiplatform.
_HOST = "*.googleapis.com"
_VALID = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    authority: Path
    """What clients trust."""
    chain: Path
    """What the server shows."""
    key: Path


def write_certificate(folder: Path) -> Certificate:
    """Write a new authority's certificate, and a server's certificate and key, into `folder`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    # An hour back: a clock that was set meanwhile does not make it invalid.
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

    def builder(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("shardline rehearsal"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + _VALID)
        )

    usage = {
        "content_commitment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    authority = (
        builder("shardline rehearsal", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(authority_id, critical=False)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_encipherment=False, key_cert_sign=True, crl_sign=True, **usage),
            critical=True,
        )
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        builder("googleapis.com of the rehearsal", server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_encipherment=True, key_cert_sign=False, crl_sign=False, **usage),
            critical=True,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    make_private(folder)
    made = Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    made.chain.write_bytes(server.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM))
    write_private(made.key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made
