"""Commands of the pages with programs we did not write, typed as they stand there: README's five minutes with paho and
mosquitto, libcoap's client, curl at the HTTP endpoint, and the platform's API with curl and jq. Ports and folders are
the test's own. Commands of our program alone are typed by tests/tests/pages.rs."""

import json
import re
import sys
import unittest

from broker import eventually
from pages import Typist, begins_with, commands, lines, page


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

    def log_in(self):
        """What the page on the platform types before its requests: `api`, and a token."""
        [api] = lines("docs/platform.md", "api()")
        [token] = lines("docs/platform.md", "TOKEN=")
        api = api.replace("curl -sS", "curl -sS --fail-with-body")
        begin = f"{api}\n{token}\n"
        # The server knows a new user half a second later.
        eventually("the user", lambda: len(self.type(f"{begin} echo $TOKEN").strip()) > 20)
        return f"{api}\nTOKEN={self.type(f'{begin} echo $TOKEN').strip()}\n"

    def test_the_platforms_api(self):
        for line in lines("docs/platform.md", "fulmar "):
            self.type(f"{line.split(' #')[0]} --data {self.broker.data}", "correct horse")
        begin, reading = self.log_in(), None
        for _, line in commands("docs/platform.md"):
            if begins_with(line, "LIST="):
                made = self.type(f"{begin}{line}\necho $LIST").strip()
                self.assertRegex(made, r"^[0-9a-f-]{36}$")
                begin += f"LIST={made}\n"
            elif '"items"' in line:
                reading = re.search(r'"id":"([0-9a-f-]{36})"', line).group(1)
                self.assertIn("stored", self.type(begin + line))
            elif begins_with(line, "api") and not begins_with(line, "api()"):
                printed = self.type(begin + line.replace("/reading/ID", f"/reading/{reading}"))
                if line == "api /hamburg/work_list":
                    # The reading has completed the list.
                    [monday] = json.loads(printed)["items"]
                    self.assertEqual((monday["name"], monday["done"], monday["total"]), ("Monday", 1, 1))
        self.assertGreater(len((self.folder / "readings.csv").read_text().splitlines()), 1)

    def test_a_utilitys_own_server(self):
        self.words["/var/lib/fulmar"] = self.broker.data
        for line in lines("docs/meters-app.md", "fulmar "):
            self.type(line, "correct horse")
        begin = self.log_in()
        (self.folder / "meters.csv").write_text(
            "id,street,serial,lat,lon\na1,Hafenstr. 2,4711,53.54,9.98\na2,Hafenstr. 4,4712,53.55,9.99\n")
        [imports] = lines("docs/meters-app.md", "tail ")
        made = json.loads(self.type(begin + imports))["results"]
        self.assertEqual([one["status"] for one in made], ["created", "created"])
        for line in lines("docs/meters-app.md", "api "):
            self.type(begin + line)
        [tuesday] = json.loads(self.type(f"{begin} api /hamburg/work_list"))["items"]
        self.assertEqual((tuesday["assignee"], tuesday["total"]), ("bob", 2))
        meter = json.loads(self.type(f"{begin} api /hamburg/meter/a3"))
        self.assertEqual((meter["address"], meter["has_key"]), ("SEN-33225544", True))


if __name__ == "__main__":
    unittest.main()
