// A way to a server on which UDP is blocked: TCP passes, datagrams to the same port vanish without an answer,
// as in a network whose firewall lets nothing but web pages through.

import { createSocket } from "node:dgram";
import { connect, createServer } from "node:net";

export class TcpOnly {
  /** In front of `port` of this machine. */
  static async before(port) {
    const way = new TcpOnly();
    way.swallowed = 0;
    way.tcp = createServer((client) => {
      const server = connect(port, "127.0.0.1");
      client.pipe(server).pipe(client);
      for (const [one, other] of [[client, server], [server, client]]) {
        one.on("error", () => other.destroy());
        one.on("close", () => other.destroy());
      }
    });
    // The port TCP gets may be taken for UDP.
    for (let attempt = 0; ; attempt++) {
      await new Promise((resolve) => way.tcp.listen(0, "127.0.0.1", resolve));
      way.port = way.tcp.address().port;
      way.udp = createSocket("udp4", () => way.swallowed++);
      const bound = await new Promise((resolve) => {
        way.udp.once("error", () => resolve(false));
        way.udp.bind(way.port, "127.0.0.1", () => resolve(true));
      });
      if (bound) return way;
      if (attempt === 20) throw new Error("no port that is free for TCP and UDP");
      await new Promise((resolve) => way.tcp.close(resolve));
    }
  }

  close() {
    this.tcp.close();
    this.udp.close();
  }
}
