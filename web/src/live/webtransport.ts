// A WebTransport stream dressed as a WebSocket, which is what MQTT.js knows how to use: MQTT over QUIC in a
// browser. The server's certificate is believed by its hash where the configuration gives one, so
// that a private authority is no obstacle.

type Listener = (event: Event) => void;

export interface Way {
  url: string;
  certificate_hashes: string[];
}

export class TransportSocket extends EventTarget {
  readonly CONNECTING = 0;
  readonly OPEN = 1;
  readonly CLOSING = 2;
  readonly CLOSED = 3;
  readyState = 0;
  bufferedAmount = 0;
  binaryType: BinaryType = 'arraybuffer';
  private transport: WebTransport | null = null;
  private writer: WritableStreamDefaultWriter<Uint8Array> | null = null;

  /** `way` may take a moment: hashes change, so they are asked for anew. */
  constructor(way: () => Promise<Way>) {
    super();
    void this.run(way);
  }

  private async run(way: () => Promise<Way>): Promise<void> {
    try {
      const { url, certificate_hashes } = await way();
      const hashes = certificate_hashes.map((hash) => ({ algorithm: 'sha-256', value: decode(hash) }));
      this.transport = new WebTransport(url, hashes.length > 0 ? { serverCertificateHashes: hashes } : {});
      await this.transport.ready;
      const stream = await this.transport.createBidirectionalStream();
      this.writer = (stream.writable as WritableStream<Uint8Array>).getWriter();
      if (this.readyState !== this.CONNECTING) return;
      this.readyState = this.OPEN;
      this.dispatchEvent(new Event('open'));
      await this.read((stream.readable as ReadableStream<Uint8Array>).getReader());
    } catch {
      if (this.readyState === this.CONNECTING) this.dispatchEvent(new Event('error'));
    }
    this.finish();
  }

  private async read(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<void> {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const data = value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength);
      this.dispatchEvent(new MessageEvent('message', { data }));
    }
  }

  send(data: Uint8Array | ArrayBuffer): void {
    const bytes = data instanceof ArrayBuffer ? new Uint8Array(data) : data.slice();
    this.bufferedAmount += bytes.byteLength;
    this.writer?.write(bytes).then(
      () => (this.bufferedAmount -= bytes.byteLength),
      () => this.close(),
    );
  }

  close(): void {
    if (this.readyState >= this.CLOSING) return;
    this.readyState = this.CLOSING;
    // What was written last, such as DISCONNECT, goes out first.
    const end = this.writer ? this.writer.close() : Promise.resolve();
    void end.catch(() => undefined).finally(() => this.finish());
  }

  private finish(): void {
    if (this.readyState === this.CLOSED) return;
    this.readyState = this.CLOSED;
    try {
      this.transport?.close();
    } catch {
      // It never came to be.
    }
    this.dispatchEvent(new CloseEvent('close'));
  }

  declare addEventListener: (type: string, listener: Listener) => void;
}

function decode(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
