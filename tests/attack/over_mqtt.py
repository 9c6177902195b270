"""What clients with an account can ask the broker to keep or to do, over MQTT."""

import base64
import collections
import contextlib
import hmac
import json
import os
import random
import socket
import time

import wire
from common import WEEK_S, Line, Pace, answer, dial, logged_in, new_network, spread


def wrong_passwords(site, seconds):
    """60 a second, under names that there are not and every fourth under the honest clients'."""
    waiting = []

    def one(number):
        user = site["user"] if number % 4 == 0 else f"stranger{number}"
        sock = dial(site["mqtt"], number)
        waiting.append(sock)
        sock.sendall(wire.connect(f"stranger{number}", user, "not it"))
        # Half of them do not wait for the answer.
        if number % 2 or len(waiting) > 512:
            waiting.pop(0).close()

    return spread(Pace(seconds, 60), one)


def wrong_from_everywhere(site, seconds):
    """2,000 a second, each from another network: half of them under names that there are not, the others under names of
    users who have not logged in yet and of those who have. Each waits as long as 8,000 others come."""
    waiting = collections.deque()

    def one(number):
        user = (f"stranger{number}", site["fresh"] % (number // 2 % site["fresh_users"]), f"stranger{number}", site["user"])[number % 4]
        sock = dial(site["mqtt"], number, new_network(number))
        waiting.append(sock)
        sock.sendall(wire.connect(f"wrong{number}", user, f"not it {number}"))
        if len(waiting) > 8_000:
            waiting.popleft().close()

    return spread(Pace(seconds, 2_000), one)


class Leaving:
    """Clients that leave when the broker has answered all they sent; some at once, so that they do not wait for its
    disk one after the other."""

    AT_ONCE = 64

    def __init__(self):
        self.waiting = collections.deque()

    def add(self, sock, *packets):
        self.waiting.append((sock, len(packets) + 1))
        sock.sendall(b"".join(packets))
        if len(self.waiting) > self.AT_ONCE:
            self.leave()

    def leave(self):
        sock, answers = self.waiting.popleft()
        with sock:
            heard = wire.Packets()
            for _ in range(answers):
                answer(sock, heard)


def publisher(site, name):
    """A line whose answers are read: the broker need not wait."""
    return Line(lambda number: logged_in(site, f"{name}-{number}", durable=False))


def shout(line, data):
    line.send(data)
    line.read()


def many_sessions(site, seconds):
    """600 durable sessions a second, each left at once, with ten long subscriptions."""

    leaving = Leaving()

    def one(number):
        filters = [f"{'x' * 500}/{number}/{at}" for at in range(10)]
        leaving.add(logged_in(site, f"many-{number}"), wire.subscribe5(filters))

    return spread(Pace(seconds, 600), one)


def token(site, user):
    """A token of this user (HS256), good for an hour."""
    encoded = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=")  # noqa: E731
    claims = json.dumps({"sub": user, "exp": int(time.time()) + 3600}).encode()
    signed = encoded(b'{"alg":"HS256","typ":"JWT"}') + b"." + encoded(claims)
    return (signed + b"." + encoded(hmac.digest(site["token_key"].encode(), signed, "sha256"))).decode()


USERS = 1_000
SESSIONS = 1_000_000


def million_sessions(site, seconds):
    """A million durable sessions by 1,000 users in turn, as fast as the broker answers: how many each user got."""
    tokens = [token(site, f"user-{user}") for user in range(USERS)]
    got, refused, waiting = collections.Counter(), collections.Counter(), collections.deque()

    def leave():
        user, sock = waiting.popleft()
        with sock:
            connack = answer(sock, wire.Packets())
        if connack is None:
            refused["closed"] += 1
        elif connack[1][1]:
            refused[f"0x{connack[1][1]:02x}"] += 1
        else:
            got[user] += 1

    number, end = 0, time.monotonic() + seconds
    while number < SESSIONS and time.monotonic() < end:
        user = number % USERS
        with contextlib.suppress(OSError):
            sock = dial(site["mqtt"], number)
            waiting.append((user, sock))
            sock.sendall(wire.connect5(f"million-{number}", f"user-{user}", tokens[user], WEEK_S))
        number += 1
        if len(waiting) > 64:
            leave()
    while waiting:
        leave()
    each = [got[user] for user in range(USERS)]
    detail = f"{sum(each)} sessions accepted, {min(each)} to {max(each)} per user; refused: {dict(refused)}"
    return {"number": number, "detail": detail}


def big_wills(site, seconds):
    """300 sessions a second that are left with a will of 64 KB for next week."""
    will, leaving = os.urandom(65_000), Leaving()
    return spread(Pace(seconds, 300), lambda number: leaving.add(logged_in(site, f"will-{number}", will=will)))


def takeovers(site, seconds):
    """500 a second of the attacker's own session, which has a will and a subscription."""

    def one(number):
        with logged_in(site, "taken", number=number, will=b"gone") as sock:
            sock.sendall(wire.subscribe5(["taken/#"]))

    return spread(Pace(seconds, 500), one)


def full_queues(site, seconds):
    """60 sessions that are away, and 1,000 messages of 100 kB a second for them."""
    leaving = Leaving()
    with contextlib.suppress(OSError):
        for number in range(60):
            leaving.add(logged_in(site, f"away-{number}"), wire.subscribe5([f"away/{number}/#"]))
        while leaving.waiting:
            leaving.leave()
    payload = os.urandom(100_000)

    def dialled(number):
        sock = logged_in(site, f"filler-{number}", durable=False)
        answer(sock, wire.Packets())
        return sock

    line = Line(dialled)

    def one(number):
        line.send(wire.publish5(f"away/{number % 60}/t", payload, number % 60_000 + 1))
        if answer(line.sock, wire.Packets()) is None:
            line.close()

    return spread(Pace(seconds, 1_000), one)


def subscribed(site, clients):
    """Durable sessions that are subscribed and away: (name, user, password, filter) each."""
    leaving = Leaving()
    for number, (name, user, password, wanted) in enumerate(clients):
        sock = dial(site["mqtt"], number)
        sock.sendall(wire.connect5(name, user, password, WEEK_S))
        leaving.add(sock, wire.subscribe5([wanted]))
    while leaving.waiting:
        leaving.leave()


def acknowledged(line, topics, payload):
    """Publishes to each of these topics at QoS 1, all at once, and waits for the answers."""
    line.send(b"".join(wire.publish5(topic, payload, number) for number, topic in enumerate(topics, 1)))
    heard = wire.Packets()
    for _ in topics:
        if answer(line.sock, heard) is None:
            return line.close()


def emptied_queues(site, seconds):
    """50 sessions at a time, for each of which a thousand messages wait; it takes them, and acknowledges all but one."""
    line = Line(lambda number: logged_in(site, f"emptier-{number}", durable=False))

    def take(name, many):
        with logged_in(site, name) as sock:
            heard, numbers = wire.Packets(), []
            while len(numbers) < many and (packet := answer(sock, heard)):
                if packet[0] >> 4 == 3:
                    topic = int.from_bytes(packet[1][:2])
                    numbers.append(int.from_bytes(packet[1][2 + topic : 4 + topic]))
            sock.sendall(b"".join(map(wire.puback, numbers[1:])) + b"\xc0\x00")
            while (packet := answer(sock, heard)) and packet[0] >> 4 != 13:
                pass

    def one(number):
        names = [f"emptied-{number}-{at}" for at in range(50)]
        subscribed(site, [(name, site["attacker"], site["password"], f"emptied/{number}") for name in names])
        acknowledged(line, [f"emptied/{number}"] * 1_000, b"x")
        for name in names:
            take(name, 1_000)

    return spread(Pace(seconds, 1_000), one)


def users_with_little(site, seconds):
    """500 users a second, for each of whom 15 KB wait: fewer than each may have of a part that is full."""
    line, payload = Line(lambda number: logged_in(site, f"giver-{number}", durable=False)), os.urandom(1_000)

    def one(number):
        users = [f"little-{number}-{at}" for at in range(50)]
        subscribed(site, [(user, user, token(site, user), user) for user in users])
        acknowledged(line, [user for user in users for _ in range(15)], payload)

    return 50 * spread(Pace(seconds, 10), one)


def identifiers_never_released(site, seconds):
    """100 sessions a second that are left with 1,000 QoS 2 messages which their publisher does not release."""
    packets = [wire.publish5_qos2("nobody/listens", b"x", number) for number in range(1, 1_001)]
    leaving = Leaving()
    return spread(Pace(seconds, 100), lambda number: leaving.add(logged_in(site, f"open-{number}"), *packets))


def connected(site, count, *packets):
    """Clients with small buffers that send these packets and read nothing; none at closed ports."""
    clients = []
    with contextlib.suppress(OSError):
        # From the first on, logins are remembered and not queued.
        answer(logged_in(site, "first", durable=False), wire.Packets())
        for number in range(count):
            sock = logged_in(site, f"connected-{number}", durable=False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(b"".join(packets))
            clients.append(sock)
    return clients


def deaf_readers(site, seconds):
    """500 subscribers that read nothing, and 100 messages of 10 kB a second at QoS 0 for all of them."""
    # They are connected until this returns.
    _deaf = connected(site, 500, wire.subscribe5(["deaf/#"], qos=0))
    line, message = publisher(site, "loud"), wire.publish5("deaf/t", os.urandom(10_000))
    return spread(Pace(seconds, 100), lambda _: shout(line, message))


def deaf_readers_of_large_messages(site, seconds):
    """300 subscribers at QoS 1 that read nothing, and 5 messages of 500 kB a second for all of them."""
    # They are connected until this returns.
    _deaf = connected(site, 300, wire.subscribe5(["deaf/#"]))
    line, message = publisher(site, "loud"), wire.publish5("deaf/t", os.urandom(500_000), number=1)
    return spread(Pace(seconds, 5), lambda _: shout(line, message))


def deaf_readers_of_properties(site, seconds):
    """300 subscribers that read nothing, and 5 messages a second for all of them with 480 kB of user properties."""
    _deaf = connected(site, 300, wire.subscribe5(["deaf/#"], qos=0))
    line, message = publisher(site, "loud"), wire.publish5_user_properties("deaf/t", 480_000, b"1")
    return spread(Pace(seconds, 5), lambda _: shout(line, message))


def large_messages_for_readers(site, seconds):
    """40 subscribers that read everything, and 20 messages of 500 kB a second for all of them, from 10 publishers."""
    readers = []
    with contextlib.suppress(OSError):
        for number in range(40):
            sock = logged_in(site, f"reader-{number}", durable=False)
            sock.sendall(wire.subscribe5(["read/#"], qos=0))
            sock.setblocking(False)
            readers.append(sock)
    lines = [publisher(site, f"loud-{number}") for number in range(10)]
    message = wire.publish5("read/t", os.urandom(500_000))

    def one(number):
        if number % 10 == 0:
            shout(lines[number // 10 % len(lines)], message)
        for sock in readers:
            with contextlib.suppress(OSError):
                sock.recv(1 << 20)

    return spread(Pace(seconds, 200), one) // 10


def unread_answers(site, seconds):
    """50 clients that send PINGREQs and read no answer: 64 kB of them, 1,000 times a second, as long as the broker takes
    them."""
    clients, taken = connected(site, 50), {"bytes": 0}
    for sock in clients:
        sock.setblocking(False)
    pings = b"\xc0\x00" * 32_768

    def one(number):
        if clients:
            with contextlib.suppress(OSError):
                taken["bytes"] += clients[number % len(clients)].send(pings)

    spread(Pace(seconds, 1_000), one)
    return taken["bytes"] // 2


def long_aliases(site, seconds):
    """64 topic aliases of 64 KiB on each of 200 connections, 300 a second."""
    lines = [publisher(site, f"alias-{number}") for number in range(200)]

    def one(number):
        lines[number // 64 % 200].send(wire.publish5("t" * 65_000 + str(number), b"", alias=number % 64 + 1))

    return spread(Pace(seconds, 300), one)


def retained_topics(site, seconds):
    """5,000 a second, on a topic each."""
    line = publisher(site, "retainer")

    def one(number):
        topics = (f"kept/{number}/{at}" for at in range(100))
        shout(line, b"".join(wire.publish5(topic, b"12345678", retain=True) for topic in topics))

    return 100 * spread(Pace(seconds, 50), one)


def retained_long_topics(site, seconds):
    """300 a second, on a topic of 64 kB each."""
    line = publisher(site, "retainer")
    return spread(Pace(seconds, 300), lambda number: shout(line, wire.publish5(f"{'x' * 65_000}/{number}", b"1", retain=True)))


def deep_filters(site, seconds):
    """5,000 a second of filters with 128 levels, half of them wildcards, and 50 messages a second that match them."""
    line, leaving = publisher(site, "deep"), Leaving()
    message = wire.publish5("/".join("a" * 128), b"")

    def one(number):
        filters = ["/".join(random.choices("a+", k=128)) for _ in range(100)]
        leaving.add(logged_in(site, f"deep-{number}"), wire.subscribe5(filters))
        shout(line, message)

    return 100 * spread(Pace(seconds, 50), one)


def many_filters(site, seconds):
    """10,000 filters a second without wildcards, with 12 levels that no other has."""
    leaving = Leaving()

    def one(number):
        filters = [f"{number}-{at}/a/b/c/d/e/f/g/h/i/j/k" for at in range(100)]
        leaving.add(logged_in(site, f"filters-{number // 10}"), wire.subscribe5(filters))

    return 100 * spread(Pace(seconds, 100), one)


def shared_groups(site, seconds):
    """20 sessions in 500 shared subscriptions each to one topic, and 100 messages a second there."""
    members = []
    with contextlib.suppress(OSError):
        for number in range(20):
            sock = logged_in(site, f"member-{number}", durable=False)
            sock.sendall(wire.subscribe5([f"$share/{number}-{group}/shared" for group in range(500)]))
            members.append(Line(lambda _, sock=sock: sock))
    line, message = publisher(site, "sharer"), wire.publish5("shared", bytes(100))

    def one(number):
        shout(line, message)
        # They read, and acknowledge nothing.
        member = members[number % len(members)]
        member.open(), member.read()

    return spread(Pace(seconds, 100), one)


def subscriptions_again(site, seconds):
    """200 SUBSCRIBEs a second of a filter that has 10,000 retained messages for it."""
    line = publisher(site, "asker")
    with contextlib.suppress(OSError):
        shout(line, b"".join(wire.publish5(f"asked/{number}", bytes(100), retain=True) for number in range(10_000)))
    return spread(Pace(seconds, 200), lambda _: shout(line, wire.subscribe5(["asked/#"], qos=0)))


def one_filter_again(site, seconds):
    """100 durable sessions that subscribe 10,000 times to one filter in each SUBSCRIBE, and change its options each time,
    200 SUBSCRIBEs a second, as long as the broker takes them: how many it took."""
    clients, taken = [], 0
    with contextlib.suppress(OSError):
        answer(logged_in(site, "first", durable=False), wire.Packets())
        for number in range(100):
            sock = logged_in(site, f"again-{number}")
            sock.setblocking(False)
            clients.append([sock, b"", 0])
    # Retain Handling 2.
    packets = [wire.subscribe5(["f"] * 10_000, qos=0x20 | qos) for qos in (0, 1)]

    def one(number):
        nonlocal taken
        if not clients:
            return
        client = clients[number % len(clients)]
        sock, rest, begun = client
        with contextlib.suppress(BlockingIOError):
            while sock.recv(65_536):
                pass
        if not rest:
            rest, begun = packets[begun % 2], begun + 1
        with contextlib.suppress(BlockingIOError):
            rest = rest[sock.send(rest) :]
        taken += not rest
        client[1:] = rest, begun

    spread(Pace(seconds, 200), one)
    return taken


ATTACKS = {
    "wrong passwords, MQTT": wrong_passwords,
    "wrong passwords from everywhere, MQTT": wrong_from_everywhere,
    "many sessions": many_sessions,
    "a million sessions": million_sessions,
    "wills of 64 KB": big_wills,
    "takeovers": takeovers,
    "full queues": full_queues,
    "queues filled and emptied": emptied_queues,
    "many users with little": users_with_little,
    "QoS 2 never released": identifiers_never_released,
    "deaf readers": deaf_readers,
    "deaf readers of large messages": deaf_readers_of_large_messages,
    "deaf readers of large properties": deaf_readers_of_properties,
    "large messages for readers": large_messages_for_readers,
    "unread answers": unread_answers,
    "long aliases": long_aliases,
    "retained messages": retained_topics,
    "retained messages, long topics": retained_long_topics,
    "deep wildcard filters": deep_filters,
    "many filters": many_filters,
    "shared groups": shared_groups,
    "subscriptions again and again": subscriptions_again,
    "one filter, 10,000 times per packet": one_filter_again,
}
