"""A server's certificate that nobody has signed but itself, as behind a company's own authority."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from http.server import HTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def speak_https(server: HTTPServer, folder: Path, *, demands_certificate: bool = False) -> str:
    """Makes a server of 127.0.0.1 speak HTTPS. Returns the file with its certificate.

    Args:
        server: The server.
        folder: Where certificate and key go; one file, ``client.pem``, has both.
        demands_certificate: Whether its clients must show that certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    if demands_certificate:
        (folder / "client.pem").write_bytes(certificate_file.read_bytes() + key_file.read_bytes())
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate_file)
        # Later versions refuse a client when it has begun to speak, in one of many ways.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return str(certificate_file)
