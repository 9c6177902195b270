"""libfulmar from C, C++ and Python: the examples of docs/clients.md, what only Python's client has, and what an application gets
wrong. client_scenarios.py has what all languages share."""

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
import unittest

from broker import PATIENCE_S
from client_tutorial import FOLDER, ROOT, Tutorial, WithBroker, fence

os.environ["FULMAR_LIBRARY"] = str(FOLDER / "libfulmar.so")
sys.path.insert(0, str(ROOT / "clients/python"))

import fulmar_client  # noqa: E402: after the library's path
from fulmar_client import _library as c  # noqa: E402

LIBRARY = c.LIBRARY


class Examples(Tutorial):
    """What docs/clients.md says, with the library of the tests."""

    def test_c(self):
        lines = self.lines("## C")
        self.assertEqual(len(lines), 3, lines)
        self.assertEqual(self.type(*lines), "plant/temperature 21.5\n")
        self.assertEqual(self.type(lines[2].replace("quic://localhost", self.url("mqtts"))), "plant/temperature 21.5\n")
        wrong = subprocess.run([f"{self.folder}/pubsub", "localhost", "t", "m"], capture_output=True, text=True,
                               env=os.environ | {"LD_LIBRARY_PATH": f"{self.prefix}/lib"})
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("write SCHEME://HOST[:PORT]", wrong.stderr)

    def test_cpp(self):
        export, compile, run = self.lines("## C")
        strict = "c++ -x c++ -std=c++17 -Wall -Wextra -Werror "
        self.assertEqual(self.type(export, compile.replace("cc ", strict, 1), run), "plant/temperature 21.5\n")
        self.type(export, compile.replace("cc ", "cc -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror ", 1))

    def test_python(self):
        [install] = self.lines("## Python")
        self.type(install)
        for page in ("docs/clients.md", "clients/python/README.md"):
            self.save("plant.py", fence(page, "python"), '"quic://localhost"',
                      f'"{self.url("quic")}", ca_file={self.broker.ca!r}')
            without = {name: value for name, value in os.environ.items() if name != "FULMAR_LIBRARY"}
            program = subprocess.Popen(["venv/bin/python", "plant.py"], cwd=self.folder, stdout=subprocess.PIPE, text=True, env=without)
            self.addCleanup(program.stdout.close)
            self.addCleanup(program.wait)
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.readline(), "plant/temperature 21.5\n", page)


class Python(WithBroker):
    def client(self, scheme: str, **options) -> fulmar_client.Client:
        return fulmar_client.Client(self.url(scheme), ca_file=self.broker.ca, **options)

    def run_async(self, work):
        async def bounded():
            return await asyncio.wait_for(work, PATIENCE_S)

        return asyncio.run(bounded())

    def test_wrong_options_say_why(self):
        for options, words in ({"no_such": 1}, "no option"), ({"keep_alive_s": "x"}, "number"), ({"streams": "x"}, "one of"):
            with self.assertRaisesRegex(fulmar_client.Error, words):
                self.client("quic", **options)

    def test_messages_that_nobody_takes_wait_and_are_not_lost(self):
        async def work():
            async with self.client("mqtt", client_id="slow", session_expiry_s=600) as slow, self.client("quic") as fast:
                await slow.subscribe("t", 1)
                for n in range(3000):
                    await fast.publish("t", str(n), 1)
                self.assertLessEqual(slow._received.qsize(), 1100)
                self.assertEqual([int(m.payload) async for m in take(slow, 3000)], list(range(3000)))

        self.run_async(work())

    def test_publications_stay_in_order_while_the_queue_is_full(self):
        async def work():
            options = {"session_expiry_s": 600, "reconnect_longest_ms": 100}
            listener = self.client("mqtt", client_id="listener", **options)
            sender = self.client("quic", client_id="sender", max_queued_messages=10, **options)
            async with listener, sender:
                await listener.subscribe("t", 1)
                self.broker.kill()
                publishing = [asyncio.ensure_future(sender.publish("t", str(n), 1)) for n in range(50)]
                await asyncio.sleep(0)
                starting = asyncio.get_running_loop().run_in_executor(None, self.broker.start)
                # More begin while these wait, and while there is room again.
                while not publishing[40].done():
                    publishing.append(asyncio.ensure_future(sender.publish("t", str(len(publishing)), 1)))
                    await asyncio.sleep(0.001)
                await asyncio.gather(starting, *publishing)
                received = [int(m.payload) async for m in take(listener, len(publishing))]
                self.assertEqual(received, list(range(len(publishing))))

        self.run_async(work())

    def test_answers_come_although_many_messages_are_unread(self):
        async def work():
            async with self.client("quic", client_id="both", session_expiry_s=600) as client, self.client("mqtt") as other:
                await client.subscribe("t", 1)
                for n in range(1500):
                    await other.publish("t", str(n), 1)
                await client.subscribe("answers", 1)
                count = 0
                async for message in client.messages():
                    self.assertEqual(int(message.payload), count)
                    await client.publish("elsewhere", message.payload, 1)
                    count += 1
                    if count == 1500:
                        break

        self.run_async(work())

    def test_a_client_ends_with_unread_messages(self):
        async def work():
            async with self.client("mqtt") as client, self.client("mqtt") as other:
                await client.subscribe("t", 1)
                for n in range(4000):
                    await other.publish("t", str(n), 1)
                async for _ in client.messages():
                    break
            # And can be used again.
            async with client:
                await client.publish("t", "m", 1)

        self.run_async(work())

    def test_a_pinned_authority_stays_with_insecure_off(self):
        with self.assertRaisesRegex(Exception, "none.pem"):
            self.run_async(self.enter(ca_file=str(self.broker.data / "none.pem"), insecure=False))

    async def enter(self, **options):
        async with fulmar_client.Client(self.url("quic"), **options):
            pass

    def test_a_killed_broker_ends_no_program_that_has_the_signals_of_c(self):
        code = f"""if True:
            import asyncio, signal, fulmar_client
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            async def main():
                options = dict(ca_file={self.broker.ca!r}, reconnect_longest_ms=100)
                async with fulmar_client.Client({self.url("mqtts")!r}, **options) as client:
                    print("ready", flush=True)
                    while not client.last_error:
                        await client.publish("t", bytes(1000))
                    await client.publish("t", "again", 1)
                    print("again", flush=True)
            asyncio.run(main())"""
        environment = os.environ | {"PYTHONPATH": str(ROOT / "clients/python")}
        program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "ready\n")
        self.broker.kill()
        self.broker.start()
        self.assertEqual(program.stdout.readline(), "again\n")
        self.assertEqual(program.wait(PATIENCE_S), 0)


async def take(client: fulmar_client.Client, count: int):
    async for message in client.messages():
        yield message
        count -= 1
        if count == 0:
            return


class WrongCalls(WithBroker):
    """None of these may end the process."""

    def error(self) -> str:
        return LIBRARY.fulmar_error().decode()

    def test_arguments(self):
        self.assertEqual(LIBRARY.fulmar_options_new(None), 0)
        self.assertIn("null", self.error())
        self.assertEqual(LIBRARY.fulmar_options_new(b"quic://\xff"), 0)
        self.assertIn("not UTF-8", self.error())
        options = LIBRARY.fulmar_options_new(self.url("mqtt").encode())
        self.assertEqual(LIBRARY.fulmar_options_set(options, None, b"", 0), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_options_set(options, b"client_id", None, 5), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_options_set(options, b"client_id", b"\xff", 1), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_options_set(options, b"client_id", b"x", 2**63), c.INVALID)
        client = LIBRARY.fulmar_connect(options)
        event = c.Event()
        self.assertEqual(LIBRARY.fulmar_next(client, None, 0), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_publish(client, None, 0, 0), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_publish(client, ctypes.byref(c.Publication(None)), 0, 0), c.INVALID)
        big = c.Publication(b"t", b"", 2**62)
        self.assertEqual(LIBRARY.fulmar_publish(client, ctypes.byref(big), 0, 0), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_subscribe(client, b"t", 0xFF, 0), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_next(client, ctypes.byref(event), PATIENCE_S * 1000), 1, self.error())
        self.assertEqual(event.kind, c.CONNECTED, event.text)
        for handle in (client, options):
            self.assertEqual(LIBRARY.fulmar_free(handle), 0)

    def test_handles_that_are_none(self):
        options = LIBRARY.fulmar_options_new(self.url("mqtt").encode())
        client = LIBRARY.fulmar_connect(options)
        self.assertEqual(LIBRARY.fulmar_options_set(client, b"client_id", b"x", 1), c.INVALID)
        self.assertEqual(LIBRARY.fulmar_connect(client), 0)
        for handle in (client, options):
            self.assertEqual(LIBRARY.fulmar_free(handle), 0)
        event = c.Event()
        for handle in (0, client, options, 2**64 - 1):
            self.assertEqual(LIBRARY.fulmar_free(handle), c.INVALID)
            self.assertIn("was freed", self.error())
            self.assertEqual(LIBRARY.fulmar_next(handle, ctypes.byref(event), 0), c.INVALID)
            self.assertEqual(LIBRARY.fulmar_event_fd(handle), c.INVALID)
            self.assertEqual(LIBRARY.fulmar_disconnect(handle, 0), c.INVALID)
            self.assertEqual(LIBRARY.fulmar_connect(handle), 0)

    def test_a_thread_that_waits_learns_that_its_client_is_freed(self):
        self.freed_while_a_thread_waits()

    def test_the_same_while_a_request_waits_for_a_broker_that_is_away(self):
        self.broker.kill()
        self.freed_while_a_thread_waits()

    def freed_while_a_thread_waits(self):
        options = LIBRARY.fulmar_options_new(self.url("mqtt").encode())
        LIBRARY.fulmar_options_set(options, b"drain_timeout_ms", b"100", 3)
        client = LIBRARY.fulmar_connect(options)
        self.assertEqual(LIBRARY.fulmar_subscribe(client, b"t", 1, 1), 0)
        answers, ready = [], threading.Event()

        def wait():
            event = c.Event()
            while True:
                answer = LIBRARY.fulmar_next(client, ctypes.byref(event), -1)
                answers.append(answer)
                ready.set()
                if answer != 1:
                    return

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.assertTrue(ready.wait(PATIENCE_S))
        event = c.Event()
        # Either it is waiting, or about to, and the event is this one's.
        self.assertIn(LIBRARY.fulmar_next(client, ctypes.byref(event), 0), (c.BUSY, 0, 1))
        self.assertEqual(LIBRARY.fulmar_free(client), 0)
        thread.join(PATIENCE_S)
        self.assertFalse(thread.is_alive())
        self.assertIn(answers[-1], (c.CLOSED, c.INVALID))
        LIBRARY.fulmar_free(options)


if __name__ == "__main__":
    unittest.main()
