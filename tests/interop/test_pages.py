"""Commands of the pages with programs we did not write, typed as they stand there: README's five minutes with paho and
mosquitto, libcoap's client, curl at the HTTP endpoint, and the platform's API with curl and jq. Ports and folders are
the test's own. Commands of our program alone are typed by tests/tests/pages.rs."""

import json
import re
import sys
import unittest

from broker import eventually
from pages import Typist, lines, page


class Pages(Typist):
    def settings(self):
        return "[platform]\nenabled = true\n"

    def setUp(self):
        super().setUp()
        self.words |= {"coap-client ": "coap-client-notls ", "venv/bin/python": f"{sys.executable} -u"}

    def test_the_five_minutes_of_the_readme(self):
        program = re.search(r"(?s)```python\n(.*?)```", page("README.md"))[1]
        program = program.replace("1883", str(self.ports["mqtt"]))
        (self.folder / "plant.py").write_text(program, encoding="utf-8")
        paho = self.leave(lines("README.md", "venv/bin/python ")[0])
        mosquitto = self.leave(lines("README.md", "mosquitto_sub -p 8883")[0])
        publish = lines("README.md", "target/quick/fulmar pub")[0]

        def arrived():
            self.type(publish)
            return all("plant/temperature 21.5" in client.text() for client in (paho, mosquitto))

        eventually("the message at both clients", arrived)

    def test_curl_at_the_http_endpoint(self):
        for name in ("docs/http.md", "docs/certificates.md"):
            for line in lines(name, "curl "):
                self.assertIsInstance(json.loads(self.type(line.replace("curl", "curl -sS --fail-with-body"))), dict)

    def test_the_browsers_certificates(self):
        for line in lines("docs/certificates.md", "mkdir ") + lines("docs/certificates.md", "certutil "):
            self.type(line)
        self.assertIn("fulmar", self.type("certutil -d sql:$HOME/.pki/nssdb -L"))

    def test_libcoap(self):
        get, put = lines("docs/coap.md", "coap-client -")
        observed = self.leave(get)

        def arrived():
            self.type(put)
            return "21.5" in observed.text()

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
        self.assertGreater(len((self.folder / "readings.csv").read_text().splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
