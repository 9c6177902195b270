"""The client for Go: what docs/clients.md says of it, and the scenarios of all languages, with Go's race detector."""

import os
import pathlib
import shutil
import subprocess
import unittest

from client_scenarios import Scenarios
from client_tutorial import FOLDER, ROOT, Tutorial, fence


def program() -> str:
    """The compiled agent; `make test-interop` builds it and says where it is."""
    path = os.environ.get("FULMAR_AGENT_GO")
    if not path or not pathlib.Path(path).is_file():
        raise unittest.TestCase.failureException("set FULMAR_AGENT_GO to the compiled agent (make test-interop does)")
    return path


@unittest.skipUnless(shutil.which("go"), "Go is missing")
class Go(Scenarios, unittest.TestCase):
    @classmethod
    def agent_command(cls):
        return [program()]

    @classmethod
    def agent_environment(cls):
        return {**os.environ, "LD_LIBRARY_PATH": str(FOLDER)}


@unittest.skipUnless(shutil.which("go"), "Go is missing")
class Page(Tutorial):
    def test_the_program(self):
        export, *lines, run = self.lines("## Go")
        self.type(export, *lines)
        self.save("plant/plant.go", fence("docs/clients.md", "go"), '"quic://localhost", fulmar.Options{}',
                  f'"{self.url("quic")}", fulmar.Options{{CAFile: "{self.broker.ca}"}}')
        self.assertEqual(self.type(export, "cd plant", run), "plant/temperature 21.5\n")

    def test_sources_are_formatted_and_vetted(self):
        folders = [ROOT / "clients/go", ROOT / "clients/go/quicconn", ROOT / "tests/interop/agents/go"]
        unformatted = subprocess.run(["gofmt", "-l", *folders], capture_output=True, text=True, check=True).stdout
        self.assertEqual(unformatted, "")
        export = self.lines("## Go")[0]
        for folder in folders:
            self.type(export, f"cd {folder}", "go vet ./...")


if __name__ == "__main__":
    unittest.main()
