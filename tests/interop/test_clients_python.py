"""The scenarios of all languages with the client for Python."""

import os
import sys
import unittest

from client_scenarios import Scenarios
from client_tutorial import FOLDER, ROOT


class Python(Scenarios, unittest.TestCase):
    @classmethod
    def agent_command(cls):
        return [sys.executable, str(ROOT / "tests/interop/agents/agent.py")]

    @classmethod
    def agent_environment(cls):
        return {**os.environ, "PYTHONPATH": str(ROOT / "clients/python"), "FULMAR_LIBRARY": str(FOLDER / "libfulmar.so")}


if __name__ == "__main__":
    unittest.main()
