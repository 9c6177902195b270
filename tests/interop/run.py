"""Runs the tests of this folder, those of the modules named or all; then says how long the slowest took, what
was skipped and why, and how many passed. Exit status 1 if one failed or none ran.

Modules run side by side, each in a process of its own, because most of them wait for timers and lost packets
most of the time; what one prints is shown when it has ended. FULMAR_JOBS says how many at once (default: one
more than there are processors)."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = pathlib.Path(__file__).parent
SLOWEST = 8
# What takes longest begins first.
FIRST = ["test_cluster_kill", "test_cluster", "test_cluster_refused", "test_page_commands", "test_coap", "test_firmware", "test_schema", "test_gateway",
         "test_migration"]
# No module takes this long unless it hangs: its tests have bounds of their own.
LIMIT_S = 1800


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


def one(name: str, report: str):
    """Runs a module, a class or a test, and writes to the file `report` how it went."""
    suite = unittest.TestLoader().loadTestsFromName(name)
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    failed = result.failures + result.errors
    # What goes wrong before a class's first test fails, but under a name that is no test's.
    others = {test.id() for test, _ in failed + result.skipped}
    pathlib.Path(report).write_text(json.dumps({
        "seconds": result.seconds,
        "passed": len(result.seconds.keys() - others),
        "failed": [test.id() for test, _ in failed] + [test.id() for test in result.unexpectedSuccesses],
        "skipped": [(test.id(), reason) for test, reason in result.skipped],
    }))


def apart(name: str) -> dict:
    """The same in a process of its own; prints what it printed."""
    with tempfile.TemporaryDirectory(prefix="fulmar-tests-") as folder:
        report, printed = pathlib.Path(folder, "report"), pathlib.Path(folder, "printed")
        with printed.open("w") as file:
            command = [sys.executable, "-u", __file__, "--one", name, str(report)]
            try:
                subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT_S)
                why = "ended without a result"
            except subprocess.TimeoutExpired:
                why = f"had not ended after {LIMIT_S} s"
        text = printed.read_text(errors="replace")
        print(f"== {name}\n{text}", end="", flush=True)
        if report.exists():
            return json.loads(report.read_text())
        return {"seconds": {}, "passed": 0, "failed": [f"{name}: {why}"], "skipped": []}


def main(names: list[str]) -> int:
    names = names or sorted(path.stem for path in FOLDER.glob("test_*.py"))
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    jobs = int(os.environ.get("FULMAR_JOBS", 0)) or (os.cpu_count() or 1) + 1
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(apart, names))
    seconds = {name: taken for result in results for name, taken in result["seconds"].items()}
    passed = sum(result["passed"] for result in results)
    failed = [name for result in results for name in result["failed"]]
    skipped = [entry for result in results for entry in result["skipped"]]
    print("Slowest:")
    for name, taken in sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]:
        print(f"  {taken:6.1f} s  {name}")
    for name, reason in skipped:
        print(f"SKIPPED {name}: {reason}")
    for name in failed:
        print(f"FAILED {name}")
    took = time.monotonic() - began
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped, in {took:.0f} s")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.exit(one(*sys.argv[2:]))
    sys.exit(main(sys.argv[1:]))
