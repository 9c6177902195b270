"""What strangers and users can do to the ways in that have accounts of their own: SCRAM, the administration API and its
page, and requests to change users (`$CONTROL`)."""

import contextlib
import json
import struct
import uuid

import wire
from common import Line, Pace, answer, dial, dial_tls, hold, logged_in, new_network, spread, tls

# Users of the store, which the broker gets beside those of its password file: "store" may do nothing, "chief" everything.
STORE_USER = "store"
CHIEF = "chief"
CONTROL = "$CONTROL/dynamic-security/v1"


def half_exchanges(site, seconds):
    """2,000 CONNECTs with a will of 60 kB whose exchange of SCRAM stops after the server's first message."""

    first = wire.connect_scram("half", wire.scram_first("stranger"), will=bytes(60_000))
    return hold(seconds, 500, 2_000, lambda number: dial(site["mqtt"], number), first)


def failing_exchanges(site, seconds):
    """500 exchanges of SCRAM a second with a wrong proof, every fourth under an honest client's name."""

    def one(number):
        user = site["keeper"] if number % 4 == 0 else f"stranger{number}"
        with dial(site["mqtt"], number) as sock:
            heard = wire.Packets()
            sock.sendall(wire.connect_scram(f"failing-{number}", wire.scram_first(user)))
            if asked := answer(sock, heard):
                sock.sendall(wire.auth_scram(wire.scram_wrong(asked)))

    return spread(Pace(seconds, 500), one)


def scram_takeovers(site, seconds):
    """200 takeovers a second of a session of the attacker's own, each after a whole exchange of SCRAM."""
    exchange = wire.Scram(STORE_USER, site["password"])

    def one(number):
        with dial(site["mqtt"], number) as sock:
            heard = wire.Packets()
            sock.sendall(wire.connect_scram("taken-scram", exchange.first(), will=b"gone"))
            if asked := answer(sock, heard):
                sock.sendall(wire.auth_scram(exchange.final(asked)))

    return spread(Pace(seconds, 200), one)


def posts(site, path, bodies):
    """Requests one after the other on connections from many addresses, whose answers are read."""
    context = tls(site)
    lines = [Line(lambda number, at=at: dial_tls(site, context, at)) for at in range(64)]
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ".encode()

    def one(number):
        line, body = lines[number % len(lines)], bodies(number)
        line.send(head + b"%d\r\n\r\n" % len(body) + body)
        line.read()

    return one


def logins_from_everywhere(site, seconds, path, users):
    """2,000 logins a second over 400 connections, of which each sends 20 from a network of its own; half of them under names
    that there are not."""
    context = tls(site)
    lines = [Line(lambda number, at=at: dial_tls(site, context, at, source=new_network(400 * number + at))) for at in range(400)]
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ".encode()

    def one(number):
        line = lines[number % len(lines)]
        if number // len(lines) % 20 == 0:
            line.close()
        user = users[number // 2 % len(users)] if number % 2 else f"stranger{number}"
        body = json.dumps({"user": user, "password": f"not it {number}"}).encode()
        line.send(head + b"%d\r\n\r\n" % len(body) + body)
        line.read()

    return spread(Pace(seconds, 2_000), one)


def platform_logins_from_everywhere(site, seconds):
    """Of the platform."""
    return logins_from_everywhere(site, seconds, "/api/v1/session", [site["account"]])


def api_logins_from_everywhere(site, seconds):
    """Of the administration API."""
    return logins_from_everywhere(site, seconds, "/api/admin/v1/session", [site["keeper"], CHIEF])


def api_logins(site, seconds):
    """500 logins a second to the administration API from 64 addresses, with wrong passwords."""

    def body(number):
        return json.dumps({"user": CHIEF if number % 4 == 0 else f"stranger{number}", "password": "not it"}).encode()

    return spread(Pace(seconds, 500), posts(site, "/api/admin/v1/session", body))


def page_sessions(site, seconds):
    """50 logins a second of a viewer to the broker's page, each of which is a session."""
    body = json.dumps({"user": "viewer", "password": site["password"]}).encode()
    return spread(Pace(seconds, 50), posts(site, "/api/admin/v1/session", lambda _: body))


API_HEAD = (
    b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
)


def requested(site, context, token, method, path, body, number=0):
    """The body of the answer to a request to the platform."""
    with dial_tls(site, context, number) as sock:
        sock.sendall(API_HEAD % (method, path, token, len(body)) + body)
        answered = b"".join(iter(lambda: sock.recv(65536), b""))
    return answered.partition(b"\r\n\r\n")[2]


def platform_token(site, context):
    """A token of a user of the platform; in a control run, where nobody gives one, another text."""
    body = json.dumps({"user": site["account"], "password": site["password"]}).encode()
    with contextlib.suppress(OSError):
        return json.loads(requested(site, context, b"", b"POST", b"/api/v1/session", body))["token"].encode()
    return b"none"


def photos_not_taken(site, seconds):
    """640 requests of a photo of 4 MB a second: 64 on a connection of a user of the platform, 200 at once, that take nothing
    of any of them."""
    context, photo = tls(site), b"\xff\xd8\xff" + bytes(4_000_000)
    path = b"/api/v1/town/photo/%s" % str(uuid.uuid4()).encode()
    token = platform_token(site, context)
    with contextlib.suppress(OSError):
        requested(site, context, token, b"PUT", path, photo)
    request = wire.h2_get(path) + wire.h2_literal(b"authorization", b"Bearer " + token)
    # A window of no bytes for each stream (RFC 9113 section 6.5.2).
    first = wire.h2_preface() + wire.h2_frame(4, 0, 0, struct.pack(">HI", 4, 0))
    first += b"".join(wire.h2_frame(1, 5, 2 * at + 1, request) for at in range(64))
    context = tls(site, ["h2"])
    held = hold(seconds, 10, 200, lambda number: dial_tls(site, context, number), first)
    return {**held, "number": 64 * held["number"]}


def long_uploads(site, seconds):
    """12 uploads a second of 2 MB with a million items, by a user of the platform: readings and meters."""
    context = tls(site)
    token, items = platform_token(site, context), b'{"items":[1' + b",1" * 1_000_000 + b"]}"

    def one(number):
        path = b"/api/v1/town/" + (b"reading" if number % 2 else b"meter")
        requested(site, context, token, b"POST", path, items, number)

    return spread(Pace(seconds, 12), one)


def control_denied(site, seconds):
    """500 requests of 100 kB a second to change users, by a user who may not."""
    line = Line(lambda number: logged_in(site, f"denied-{number}", durable=False))
    request = wire.publish5(CONTROL, control([{"command": "listClients"}] * 2_000), 1)

    def one(_):
        line.send(request)
        line.read()

    return spread(Pace(seconds, 500), one)


def control(commands):
    return json.dumps({"commands": commands}).encode()


def control_requests(site, seconds):
    """200 requests a second by a user who may change users: 500 lists of all of them with their roles, and every tenth 100
    new passwords."""

    def dialled(number):
        sock = logged_in(site, f"chief-{number}", durable=False, user=CHIEF)
        sock.sendall(wire.subscribe5([CONTROL + "/#"], qos=0))
        return sock

    line = Line(dialled)
    lists = wire.publish5(CONTROL, control([{"command": "listClients", "verbose": True}] * 500), 1)
    password = [{"command": "setClientPassword", "username": STORE_USER, "password": site["password"]}] * 100
    passwords = wire.publish5(CONTROL, control(password), 1)

    def one(number):
        line.send(passwords if number % 10 == 9 else lists)
        line.read()

    return spread(Pace(seconds, 200), one)


ATTACKS = {
    "half exchanges, SCRAM": half_exchanges,
    "failing exchanges, SCRAM": failing_exchanges,
    "takeovers, SCRAM": scram_takeovers,
    "logins, administration": api_logins,
    "logins from everywhere, platform": platform_logins_from_everywhere,
    "logins from everywhere, administration": api_logins_from_everywhere,
    "sessions of the page": page_sessions,
    "photos not taken, HTTP/2": photos_not_taken,
    "uploads of many items": long_uploads,
    "$CONTROL without the right": control_denied,
    "$CONTROL": control_requests,
}
