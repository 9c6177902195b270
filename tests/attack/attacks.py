"""The attacks, each a process of its own that runs for a time, at a rate, and says how much it did.

    attacks.py NAME SECONDS SITE

SITE is JSON: where the listeners are. The last line of the output is the number of what was tried, and perhaps a word
about it. Where nobody listens, an attack keeps trying at its rate: that is the control run.
"""

import json
import os
import sys
import time

import half_open
import over_accounts
import over_http
import over_mqtt
import over_quic
import over_udp

ATTACKS = {
    **half_open.ATTACKS,
    **over_http.ATTACKS,
    **over_quic.ATTACKS,
    **over_udp.ATTACKS,
    **over_mqtt.ATTACKS,
    **over_accounts.ATTACKS,
}

if __name__ == "__main__":
    os.nice(10)
    began = time.monotonic()
    done = ATTACKS[sys.argv[1]](json.loads(sys.argv[3]), float(sys.argv[2]))
    # How many of what was tried, or that with a word about what came of it.
    done = done if isinstance(done, dict) else {"number": done}
    print(json.dumps({**done, "seconds": time.monotonic() - began}), flush=True)
    # Nothing is closed in order, as when a machine vanishes.
    os._exit(0)
