"""Commands of the pages with programs we did not write, typed as they stand there: README's five minutes with paho and
mosquitto, libcoap's client, curl at the HTTP endpoint, and the platform's API with curl and jq. Ports and folders are
the test's own. Commands of our program alone are typed by tests/tests/pages.rs."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

from broker import PATIENCE_S, Broker, binary, eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def lines(name, begins):
    """Lines of indented blocks that begin like this, with those that go on in the next."""
    text = page(name).replace("\\\n", "").split("\n")
    at = [number for number, line in enumerate(text) if re.match(r"    (\$ )?" + re.escape(begins), line)]
    assert at, f"{name} has no line that begins with {begins!r}"
    return [whole(text[number:]) for number in at]


def whole(text):
    """A command with the lines in which its quotes go on."""
    for end in range(1, 5):
        command = "\n".join(line[4:] for line in text[:end]).removeprefix("$ ")
        try:
            shlex.split(command, comments=True)
            return command
        except ValueError:
            pass
    raise AssertionError(f"a quote has no end: {text[0]}")


class Pages(unittest.TestCase):
    def setUp(self):
        self.broker = Broker("[platform]\nenabled = true\n")
        self.addCleanup(self.broker.close)
        self.ports = self.broker.ports

    def here(self, line):
        """What a line says on this machine."""
        for word, meaning in [
            ("~/.local/share/fulmar/ca/ca.pem", self.broker.ca),
            ("localhost:8443", f"localhost:{self.ports['https']}"),
            ("-p 8883", f"-p {self.ports['mqtts']}"),
            ("quic://localhost", f"quic://localhost:{self.ports['quic']} --cafile {self.broker.ca}"),
            ("coap://localhost", f"coap://localhost:{self.ports['coap']}"),
            ("coap-client ", "coap-client-notls "),
            ("target/quick/fulmar", binary()),
        ]:
            line = line.replace(word, meaning)
        return re.sub(r"^fulmar\b", binary(), line)

    def type(self, line, text=None):
        command = ["bash", "-c", self.here(line)]
        ran = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.broker.data)
        self.assertEqual(ran.returncode, 0, f"{line}\n{ran.stdout}\n{ran.stderr}")
        return ran.stdout

    def leave(self, command):
        """Starts a program that stays; what it prints is in the file returned."""
        out = self.broker.data / f"out-{os.urandom(4).hex()}"
        with open(out, "wb") as file:
            program = subprocess.Popen(command, stdout=file, cwd=self.broker.data)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return out

    def test_the_five_minutes_of_the_readme(self):
        program = re.search(r"(?s)```python\n(.*?)```", page("README.md"))[1]
        program = program.replace("1883", str(self.ports["mqtt"]))
        (self.broker.data / "plant.py").write_text(program, encoding="utf-8")
        paho = self.leave([sys.executable, "-u", "plant.py"])
        subscribe = self.here(lines("README.md", "mosquitto_sub -p 8883")[0])
        mosquitto = self.leave(["bash", "-c", f"exec stdbuf -oL {subscribe}"])
        publish = lines("README.md", "target/quick/fulmar pub")[0]

        def arrived():
            self.type(publish)
            return all("plant/temperature 21.5" in out.read_text() for out in (paho, mosquitto))

        eventually("the message at both clients", arrived)

    def test_curl_at_the_http_endpoint(self):
        for name in ("docs/http.md", "docs/certificates.md"):
            for line in lines(name, "curl "):
                self.assertIsInstance(json.loads(self.type(line.replace("curl", "curl -sS --fail-with-body"))), dict)

    def test_libcoap(self):
        get, put = lines("docs/coap.md", "coap-client -")
        observed = self.leave(["bash", "-c", f"exec stdbuf -oL {self.here(get)}"])

        def arrived():
            self.type(put)
            return "21.5" in observed.read_text()

        eventually("the observed value", arrived)

    def test_the_platforms_api(self):
        for line in lines("docs/platform.md", "fulmar "):
            self.type(f"{line.split(' #')[0]} --data {self.broker.data}", "correct horse")
        typed = lines("docs/platform.md", "api") + lines("docs/platform.md", "TOKEN=")
        api = next(line for line in typed if line.startswith("api()")).replace("curl -sS", "curl -sS --fail-with-body")
        token = next(line for line in typed if line.startswith("TOKEN"))
        begin = f"{api}\n{token}\n"
        # The server knows a new user half a second later.
        eventually("the user", lambda: len(self.type(f"{begin} echo $TOKEN").strip()) > 20)
        begin = f"{api}\nTOKEN={self.type(f'{begin} echo $TOKEN').strip()}\n"
        work_list = reading = None
        for line in typed:
            if line.startswith(("api()", "TOKEN")):
                continue
            if '"items"' in line:
                reading = re.search(r'"id":"([0-9a-f-]{36})"', line).group(1)
                self.assertIn("stored", self.type(begin + line))
                continue
            line = line.replace("/reading/ID", f"/reading/{reading}")
            line = re.sub(r"work_list=[0-9a-f-]{36}", f"work_list={work_list}", line)
            printed = self.type(begin + line)
            if "Monday" in line:
                work_list = json.loads(printed)["id"]
        self.assertGreater(len((self.broker.data / "readings.csv").read_text().splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
