"""The API against its OpenAPI document, by schemathesis: requests made from the document, with what is and what is
not allowed, over all of its operations. No answer may be a 5xx, or one that the document does not describe.

It asks a server with a twin in which there is one of everything: once with those ids in paths, since made-up ones
lead no further than 404, and once with any. `FULMAR_SCHEMA_EXAMPLES` is how many requests an operation gets beyond
those that cover the document.
"""

import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import uuid

from api import Api

EXAMPLES = int(os.environ.get("FULMAR_SCHEMA_EXAMPLES", "10"))
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
)
#: They end the token everything else is asked with, so that they get their own.
LOGGING_OUT = ("/api/v1/session", "/api/v1/{twin}/session", "/{twin}/session")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


class Schema(Api):
    # Nobody asks as fast as this test.
    SETTINGS = "[platform]\nmax_requests_per_s = 100000\n"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def one_of_everything(self, token) -> dict[str, str]:
        """What is there, by the address that names it."""
        base = "/api/v1/north"
        device = self.log_in("north-device")
        self.call("POST", f"{base}/meter", {"id": "m1", "address": "SEN-33225544-68-07", "medium": "water"}, token)
        work_list = self.call("POST", f"{base}/work_list", {"name": "Monday", "meters": ["m1"]}, token)["id"]
        photo, reading = str(uuid.uuid4()), str(uuid.uuid4())
        self.call("PUT", f"{base}/photo/{photo}", PNG, token, "image/png")
        read = {"id": reading, "meter": "m1", "at": "2026-11-21T10:00:00Z", "value": 12.5, "method": "photo"}
        read |= {"photo": photo, "work_list": work_list, "device": "van-1"}
        self.call("POST", f"{base}/reading", {"items": [read]}, token)
        self.call("PUT", f"{base}/instance/van-1", {"kind": "van"}, device)
        command = self.call("POST", f"{base}/instance/van-1/command/send", {"args": {}}, token)["id"]
        self.call("POST", f"{base}/home", {"id": "mill", "name": "Mill", "place": {"lat": 53, "lon": 10}}, token)
        self.call("PUT", f"{base}/sensor/van-1", {"home": "mill", "room": "Attic"}, token)
        # An hour and more: the rule is on the mean of an hour.
        now = datetime.datetime.now(datetime.timezone.utc)
        times = [(now - datetime.timedelta(minutes=4 * n)).isoformat() for n in range(20, -1, -1)]
        measured = [{"device": "van-1", "quantity": "radon", "at": at, "value": 400} for at in times]
        self.call("POST", f"{base}/measurement", {"items": measured}, token)
        alert = self.call("GET", f"{base}/alert", token=token)["items"][0]["id"]
        hook = {"url": "https://hooks.example/", "secret": "not told again"}
        hook = self.call("POST", f"{base}/webhook", hook, token)["id"]
        return {
            "home/{id}": "mill",
            "alert/{id}": alert,
            "alert/{id}/acknowledge": alert,
            "alert_rule/{id}": "radon",
            "webhook/{id}": hook,
            "meter/{id}": "m1",
            "meter/{id}/consumption": "m1",
            "work_list/{id}": work_list,
            "photo/{id}": photo,
            "reading/{id}": reading,
            "reading/{id}/resolve": reading,
            "command/{command}": command,
        }

    def config(self, known: dict[str, str]) -> pathlib.Path:
        lines = ["[parameters]", 'twin = "north"']
        if known:
            lines += ['device = "van-1"', 'name = "north-viewer"']
        for address, value in known.items():
            name = address[address.rindex("{") + 1 : address.rindex("}")]
            lines += ["[[operations]]", f"include-path-regex = '/{re.escape(address)}$'"]
            lines += [f'parameters = {{ "path.{name}" = "{value}" }}']
        path = self.folder / "schemathesis.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def schemathesis(self, token, known, *words):
        program = pathlib.Path(sys.executable).with_name("schemathesis")
        command = [program, "--config-file", self.config(known), "run", self.address("/api/v1/openapi.json")]
        command += ["--tls-verify", self.broker.ca, "--header", f"Authorization: Bearer {token}"]
        command += ["--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--seed", "8443"]
        command += ["--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"]
        command += ["--request-timeout", "30", "--generation-database", "none", "--no-color", *words]
        done = subprocess.run(command, cwd=self.folder, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout[-20_000:] + done.stderr[-2000:])
        # Nor is it a success to have found nothing to ask.
        tested = re.search(r"Tested: (\d+)", done.stdout)
        return int(tested[1])

    def test_no_answer_is_an_error_of_the_server_or_not_in_the_document(self):
        self.command("user", "add", "root", "--admin")
        token = self.log_in("root")
        document = self.call("GET", "/api/v1/openapi.json")
        operations = sum(len(item) for item in document["paths"].values())
        others = [word for path in LOGGING_OUT for word in ("--exclude-path", path)]
        tested = self.schemathesis(token, self.one_of_everything(token), *others)
        self.assertEqual(self.schemathesis(token, {}, "--phases", "fuzzing", *others), tested)
        ending = [word for path in LOGGING_OUT for word in ("--include-path", path)]
        self.assertEqual(tested + self.schemathesis(self.log_in("root"), {}, *ending), operations)
        self.assertEqual(self.call("GET", "/api/v1/session", token=token)["user"]["name"], "root", "it was asked as root")
        log = (self.broker.data / "log").read_text()
        self.assertNotIn("panicked", log)
