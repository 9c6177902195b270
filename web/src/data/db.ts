// The device's own store (IndexedDB): what was fetched, so that everything can be seen offline, and
// the outbox, which is what must not be lost. Page and service worker both open it.

import { openDB, type DBSchema, type IDBPDatabase } from 'idb';
import type { Meter, WorkList } from '../types';
import type { Conflict, Item } from './outbox';

export interface Stored extends DBSchema {
  /** Session, settings, configuration: by name. */
  kv: { key: string; value: unknown };
  meters: { key: [string, string]; value: Meter & { twin: string }; indexes: { twin: string } };
  lists: { key: [string, string]; value: WorkList & { twin: string }; indexes: { twin: string } };
  outbox: { key: string; value: Item; indexes: { created: number } };
  /** Bytes of photos that wait; kept apart so that listing the outbox loads none of them. */
  photos: { key: string; value: Blob };
  conflicts: { key: string; value: Conflict };
}

export type Database = IDBPDatabase<Stored>;

const VERSION = 1;

export function openDatabase(name = 'fulmar'): Promise<Database> {
  return openDB<Stored>(name, VERSION, {
    upgrade(db) {
      db.createObjectStore('kv');
      db.createObjectStore('meters', { keyPath: ['twin', 'id'] }).createIndex('twin', 'twin');
      db.createObjectStore('lists', { keyPath: ['twin', 'id'] }).createIndex('twin', 'twin');
      db.createObjectStore('outbox', { keyPath: 'id' }).createIndex('created', 'created');
      db.createObjectStore('photos');
      db.createObjectStore('conflicts', { keyPath: 'id' });
    },
    // A newer version of the app in another tab wants to upgrade: let it.
    blocking(_current, _blocked, event) {
      (event.target as IDBDatabase).close();
    },
  });
}
