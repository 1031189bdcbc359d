"""A web server that knows its readers by certificates, and the files of a reader."""

import ssl
from contextlib import AbstractContextManager
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from harness.web import serving


def serving_tls(application, authority: trustme.CA) -> AbstractContextManager[str]:
    """Serve an application to those whose certificate an authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return serving(application, tls=context)


def certificate_files(authority: trustme.CA, folder: Path, password: str) -> dict[str, str]:
    """Write files of a reader, one with a locked key; return their paths by what they hold."""
    issued = authority.issue_cert(common_name="billing")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    texts = {
        "ca": authority.cert_pem.bytes(),
        "certificate": issued.cert_chain_pems[0].bytes(),
        "key": issued.private_key_pem.bytes(),
        "locked": locked,
        "both": issued.private_key_and_cert_chain_pem.bytes(),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return {name: str(folder / name) for name in texts}
