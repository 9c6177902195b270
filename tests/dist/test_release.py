"""What scripts/release checks before it works for an hour: in a clone, with nothing compiled."""

import pathlib
import re
import subprocess
import tempfile
import unittest

import roots
from test_packages import HERE


class Release(unittest.TestCase):
    def setUp(self):
        self.clone = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "clone")
        roots.run("git", "clone", "--quiet", HERE, self.clone)
        manifest = (self.clone / "Cargo.toml").read_text()
        self.version = re.search(r'(?m)^version = "(.+)"$', manifest)[1]

    def check(self, version):
        done = roots.run("scripts/release", "--check", version, cwd=self.clone, check=False)
        return done.returncode, done.stdout

    def commit(self):
        roots.run("git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", "commit", "--quiet", "--all", "--message", "t",
                  cwd=self.clone)

    def test_a_release_needs_a_changelog_a_version_and_a_clean_tree(self):
        page = self.clone / "CHANGELOG.md"
        text = page.read_text()
        if f"## {self.version} (" not in text:
            self.assertIn("has no heading", self.check(self.version)[1])
            page.write_text(text.replace("## Unreleased", f"## {self.version} (2026-01-31)"))
            self.assertIn("not clean", self.check(self.version)[1])
            self.commit()
        self.assertEqual(self.check(self.version), (0, f"release: the tree is ready for {self.version}\n"))
        self.assertIn("another version", self.check("99.0.0")[1])
        subprocess.run(["git", "tag", f"v{self.version}"], cwd=self.clone, check=True)
        self.assertIn("exists", self.check(self.version)[1])


if __name__ == "__main__":
    unittest.main()
