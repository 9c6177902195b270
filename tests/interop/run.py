"""Runs the tests of this folder, those of the modules named or all; then says how long the slowest took, what
was skipped and why, and how many passed. Exit status 1 if one failed or none ran."""

import pathlib
import sys
import time
import unittest

SLOWEST = 8


class Result(unittest.TextTestResult):
    """As unittest's own, with the time each test took."""

    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.seconds = {}

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        self.seconds[test.id()] = time.monotonic() - self.began
        super().stopTest(test)


def main(names: list[str]) -> int:
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(pathlib.Path(__file__).parent))
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    # What goes wrong before a class's first test fails, but under a name that is no test's.
    others = {test.id() for test, _ in result.failures + result.errors + result.skipped}
    passed = len(result.seconds.keys() - others)
    print("Slowest:")
    for name, seconds in sorted(result.seconds.items(), key=lambda item: -item[1])[:SLOWEST]:
        print(f"  {seconds:6.1f} s  {name}")
    for test, reason in result.skipped:
        print(f"SKIPPED {test.id()}: {reason}")
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
