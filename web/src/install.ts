// The service worker's registration, and telling when a new version waits.

import * as state from './state';

export async function installServiceWorker(): Promise<void> {
  if (!('serviceWorker' in navigator) || import.meta.env.DEV) return;
  let registration: ServiceWorkerRegistration;
  try {
    registration = await navigator.serviceWorker.register('/sw.js');
  } catch {
    // A certificate the browser has doubts about: the app works, but not offline.
    return;
  }
  let isReloading = false;
  const hadController = navigator.serviceWorker.controller !== null;
  navigator.serviceWorker.addEventListener('controllerchange', () => {
    if (!hadController || isReloading) return;
    isReloading = true;
    location.reload();
  });
  const offer = (worker: ServiceWorker | null) => {
    if (worker && hadController) state.updateReady.value = () => worker.postMessage('activate');
  };
  offer(registration.waiting);
  registration.addEventListener('updatefound', () => {
    const worker = registration.installing;
    worker?.addEventListener('statechange', () => {
      if (worker.state === 'installed') offer(worker);
    });
  });
}
