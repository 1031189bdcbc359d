"""A web server that knows its readers by certificates, and the files of a reader."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme
import uvicorn
from cryptography.hazmat.primitives import serialization


@contextmanager
def serving_tls(application, authority: trustme.CA) -> Iterator[str]:
    """Serve an application to those whose certificate an authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    config = uvicorn.Config(application, port=0, log_level="critical", timeout_graceful_shutdown=1)
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"https://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def certificate_files(authority: trustme.CA, folder: Path, password: str) -> dict[str, str]:
    """Write files of a reader; return their paths by what they hold.

    Args:
        authority: who signs the certificate; its own is in "ca".
        folder: where to write.
        password: of the key in "locked"; the one in "key" has none.
    """
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
