#!/usr/bin/env python3
"""A PostgreSQL server for tests: of its own folder, on loopback, stopped by process id.

As a program it runs a command with a server: `postgres.py COMMAND…` sets FULMAR_TEST_POSTGRES to its address
without a database, and ends with the command's status.
"""

import glob
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ports

USER, PASSWORD = "fulmar", "pg correct horse"
PATIENCE_S = 60
# Nothing here survives the machine; a busy disk would make each commit, and the end, take seconds.
NO_SYNC = ["-c", "fsync=off"]


def programs() -> pathlib.Path:
    """Where Debian's newest initdb and postgres are, which are not in the path."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: int(path.split("/")[4]))
    path = found[-1] if found else shutil.which("initdb")
    if not path:
        raise SystemExit("PostgreSQL is missing; on Debian and Ubuntu: apt install postgresql (tests/interop/setup)")
    return pathlib.Path(path).parent


class Server:
    """Its collation is a language's, as servers' mostly are; text is ordered by its bytes all the same."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="fulmar-postgres-")
        self.path = pathlib.Path(self.folder.name)
        self.programs = programs()
        [self.port] = ports.take(1)
        (self.path / "password").write_text(PASSWORD + "\n")
        (self.path / "password").chmod(0o600)
        # PostgreSQL refuses to run as root.
        self.prefix = []
        if os.geteuid() == 0:
            for path in (self.path, self.path / "password"):
                shutil.chown(path, "postgres", "postgres")
            self.prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        self.call("initdb", "--pgdata=data", f"--username={USER}", "--pwfile=password", "--auth=scram-sha-256",
                  "--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US", "--no-sync")
        self.process = None
        self.start()

    def call(self, program, *options):
        line = [*self.prefix, self.programs / program, *options]
        done = subprocess.run(line, cwd=self.path, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")

    @property
    def address(self) -> str:
        return f"postgres://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}"

    def sql(self, text: str, database="postgres") -> str:
        """What psql prints."""
        line = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER]
        line = [self.programs / line[0], *line[1:], "-c", text, database]
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        return subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    def start(self):
        line = [*self.prefix, self.programs / "postgres", "-D", "data", "-h", "127.0.0.1", "-p", str(self.port),
                "-k", str(self.path), "-c", "max_connections=200", *NO_SYNC]
        with open(self.path / "log", "ab") as log:
            self.process = subprocess.Popen(line, cwd=self.path, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.sql("SELECT 1")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise RuntimeError((self.path / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self, how=signal.SIGINT):
        """Ends it: SIGINT ends connections first, SIGQUIT is as a crash."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE_S)

    def close(self):
        self.stop(signal.SIGQUIT)
        self.folder.cleanup()


def main(command) -> int:
    server = Server()
    try:
        environment = {**os.environ, "FULMAR_TEST_POSTGRES": server.address}
        return subprocess.run(command, env=environment).returncode
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
