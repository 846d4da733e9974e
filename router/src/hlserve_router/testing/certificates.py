"""Certificates of a CA that lives as long as a test."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass(slots=True, eq=False)
class Authority:
    """A CA and what it issues."""

    _ca: trustme.CA = field(default_factory=trustme.CA)

    @property
    def pem(self) -> str:
        """Its own certificate."""
        return self._ca.cert_pem.bytes().decode()

    def server(self, *names: str) -> ssl.SSLContext:
        """The context of a server whose certificate carries these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        """The context of a client that trusts this CA and nobody else."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._ca.configure_trust(context)
        return context

    def write(self, folder: Path, *names: str) -> tuple[Path, Path]:
        """A certificate for these names and its key, as files."""
        issued = self._ca.issue_cert(*names)
        certificate, key = folder / "tls.crt", folder / "tls.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key
