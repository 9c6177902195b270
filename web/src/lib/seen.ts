/** Looks at once and then every so often, while the page is seen; one look at a time. Returns what ends it. */
export function whileSeen(everyMs: number, look: () => Promise<unknown> | undefined): () => void {
  let isBusy = false;
  const next = () => {
    if (isBusy || document.visibilityState !== 'visible') return;
    isBusy = true;
    void Promise.resolve(look()).finally(() => (isBusy = false));
  };
  next();
  const timer = setInterval(next, everyMs);
  return () => clearInterval(timer);
}
