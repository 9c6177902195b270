"""The client for Java: what docs/clients.md says of it, and the scenarios of all languages."""

import os
import pathlib
import shutil
import unittest

from client_scenarios import Scenarios
from client_tutorial import FOLDER, ROOT, Tutorial, fence

MISSING = "a JDK or Maven is missing"


def class_path() -> str:
    """The packaged client; `make test-interop` builds it and says where it is."""
    path = os.environ.get("FULMAR_JAVA")
    if not path or not (pathlib.Path(path) / "fulmar-client-0.1.0.jar").is_file():
        raise unittest.TestCase.failureException("set FULMAR_JAVA to the folder of the built client (make test-interop does)")
    return f"{path}/*:{path}/dependency/*"


@unittest.skipUnless(shutil.which("javac") and shutil.which("mvn"), MISSING)
class Java(Scenarios, unittest.TestCase):
    @classmethod
    def agent_command(cls):
        # It ends before a better compiler would pay.
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", f"-Djna.library.path={FOLDER}"]
        return ["java", *flags, "-cp", class_path(), str(ROOT / "tests/interop/agents/java/Agent.java")]


@unittest.skipUnless(shutil.which("javac") and shutil.which("mvn"), MISSING)
class Page(Tutorial):
    def test_the_program(self):
        package, run = self.lines("## Java and Kotlin")
        # As make types it for the tests.
        self.assertEqual(package, "mvn -q -f clients/java package")
        shown = "clients/java/target/*:clients/java/target/dependency/*"
        self.assertIn(shown, run)
        self.save("Plant.java", fence("docs/clients.md", "java"), '"quic://localhost"',
                  f'"{self.url("quic")}", new Options().caFile("{self.broker.ca}")')
        self.assertEqual(self.type(run.replace(shown, class_path())), "plant/temperature 21.5\n")


if __name__ == "__main__":
    unittest.main()
