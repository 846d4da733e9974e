"""Certificates and kubeconfigs of one cluster: made fresh for each, valid for 30 days, keys readable by this user only."""

import base64
import datetime as dt
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hlserve_cluster.layout import Layout

VALID: Final = dt.timedelta(days=30)
CLOCK_SKEW: Final = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a certificate is for: Kubernetes reads the user from the name and its groups from the organization."""

    name: str
    user: str
    group: str = ""


COMPONENTS: Final = (
    Identity("admin", "hlserve-admin", "system:masters"),
    Identity("controller-manager", "system:kube-controller-manager"),
    Identity("scheduler", "system:kube-scheduler"),
)
"""Clients of the API server in every profile."""


class Authority:
    """A certificate authority that lives as long as the object: its key is written only when asked for."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self.certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def write(self, layout: Layout, name: str) -> None:
        """Write certificate and key: the controller manager signs certificates with them."""
        layout.certificate(name).write_bytes(_pem(self.certificate))
        _write_private(layout, name, _key_pem(self._key))

    def issue(self, layout: Layout, identity: Identity, hosts: Sequence[str] = ()) -> None:
        """Write a certificate and its key under the identity's name; with `hosts` it serves for these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, identity.user)]
        if identity.group:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.group))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(x509.Name(attributes), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages if hosts else usages[:1]), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), False)
        layout.certificate(identity.name).write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        _write_private(layout, identity.name, _key_pem(key))


def write_certificates(layout: Layout, hosts: Sequence[str], clients: Sequence[Identity]) -> Authority:
    """Everything that an API server and its clients need.

    `hosts` are the names and addresses under which the API server is reached. Returns the authority, to issue more with.
    """
    authority = Authority("hlserve-cluster")
    authority.write(layout, "ca")
    authority.issue(layout, Identity("apiserver", "kube-apiserver"), hosts)
    for client in clients:
        authority.issue(layout, client)
    proxies = Authority("hlserve-front-proxy")
    proxies.write(layout, "front-proxy-ca")
    proxies.issue(layout, Identity("front-proxy", "front-proxy-client"))
    signer = ec.generate_private_key(ec.SECP256R1())
    _write_private(layout, "service-accounts", _key_pem(signer))
    layout.certificate("service-accounts").write_bytes(
        signer.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return authority


def write_kubeconfig(layout: Layout, user: str, server: str, context: str) -> None:
    """A kubeconfig that carries its credentials in itself, so that it can be copied. JSON, which every YAML reader reads."""

    def data(path: str) -> str:
        return base64.b64encode((layout.certificates / path).read_bytes()).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": data(f"{user}.crt"),
                    "client-key-data": data(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
    }
    _write(layout.kubeconfig(user), json.dumps(document, indent=1).encode())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    moment = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - CLOCK_SKEW)
        .not_valid_after(moment + VALID)
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(layout: Layout, name: str, content: bytes) -> None:
    _write(layout.key(name), content)


def _write(path: os.PathLike[str], content: bytes) -> None:
    with open(path, "wb", opener=lambda file, flags: os.open(file, flags, 0o600)) as stream:
        stream.write(content)
