// A change that is one click: what became of it is said in the corner of the screen.

import * as state from '../state';
import { ApiError } from './api';

/** True if it was done. */
export async function attempt(work: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await work();
    state.say(done, 'good');
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    state.say(error.message, 'bad');
    return false;
  }
}
