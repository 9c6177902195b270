// Many messages, drawn together: hundreds come per second when a van drives.

const EVERY_MS = 500;

/** The newest of each key, handed over twice per second. */
export class Gather<T> {
  private readonly waiting = new Map<string, T>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly show: (all: ReadonlyMap<string, T>) => void) {}

  get(key: string): T | undefined {
    return this.waiting.get(key);
  }

  add(key: string, one: T): void {
    this.waiting.set(key, one);
    this.timer ??= setTimeout(() => {
      const all = new Map(this.waiting);
      this.clear();
      this.show(all);
    }, EVERY_MS);
  }

  clear(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.waiting.clear();
  }
}
