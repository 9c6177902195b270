"""A broker and the lines and programs of docs/clients.md, for the tests of each language."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from broker import PATIENCE_S, Broker, binary

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(binary()).resolve().parent
PAGE = "docs/clients.md"
SETTINGS = """[auth]
allow_anonymous = "always"
[[acl.rules]]
allow = false
action = "publish"
topic = "forbidden/#"
"""


def fence(page: str, language: str) -> str:
    """The first block of a page in this language."""
    return re.search(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL).group(1)


class WithBroker(unittest.TestCase):
    def setUp(self):
        self.broker = Broker(SETTINGS)
        self.addCleanup(self.broker.close)

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.broker.ports[scheme]}"


class Tutorial(WithBroker):
    """A copy of the library in a folder that is the repository for the page's lines."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = os.path.join(folder.name, "target/libfulmar")
        subprocess.run(["make", "--silent", "libfulmar-files", f"BUILT={FOLDER}", f"PREFIX={self.prefix}"], cwd=ROOT, check=True)
        for name in ("crates", "clients"):
            os.symlink(ROOT / name, os.path.join(folder.name, name))
        self.folder = folder.name

    def type(self, *lines: str) -> str:
        """Types lines of the page, and returns what they print."""
        script = "\n".join(["set -e", *lines]).replace("quic://localhost", self.url("quic"))
        environment = os.environ | {"FULMAR_CA": self.broker.ca}
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, env=environment, capture_output=True, text=True,
                              timeout=PATIENCE_S * 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def lines(self, heading: str) -> list[str]:
        """Command lines of a section, without those of the build that every section has."""
        section = (ROOT / PAGE).read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
        shown = re.sub(r"```.*?```", "", section, flags=re.DOTALL).splitlines()
        return [line[4:] for line in shown if line.startswith("    ") and line.strip() != "make libfulmar"]

    def save(self, name: str, program: str, shown: str, typed: str):
        """Saves a program of the page, with its URL and authority in place of what is shown."""
        self.assertIn(shown, program)
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(program.replace(shown, typed))
