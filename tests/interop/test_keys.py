"""Keys that `fulmar cert` writes, read by those who did not write them: OpenSSL and Python's cryptography."""

import pathlib
import ssl
import subprocess
import tempfile
import unittest

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from broker import binary


class Keys(unittest.TestCase):
    def test_others_read_our_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            home = pathlib.Path(folder)
            ca = ["--dir", str(home / "ca")]
            subprocess.run([binary(), "cert", "ca", *ca], check=True, capture_output=True)
            for name, words in (("p256", []), ("ed25519", ["--ed25519"])):
                issue = [binary(), "cert", "issue", name, *words, *ca, "--out", folder]
                subprocess.run(issue, check=True, capture_output=True)
                load_pem_private_key((home / f"{name}.key").read_bytes(), password=None)
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(home / f"{name}.pem", home / f"{name}.key")
