// A meter's exchanges and readings, newest first, with what was corrected; and correcting them.

import { useState } from 'preact/hooks';
import { useReadings } from '../data/readings';
import type { Meter } from '../types';
import { Exchanges } from './exchanges';
import { ReadingList } from './reading-parts';

const FIRST = 20;
const MORE = 200;

export function History({ meter }: { meter: Meter }) {
  const [most, setMost] = useState(FIRST);
  const { data, problem, again } = useReadings({ meter: meter.id }, most);
  return (
    <section class="card" aria-labelledby="history-head" data-testid="history">
      <h2 id="history-head">History</h2>
      <Exchanges meter={meter} />
      <ReadingList
        caption="Readings of this meter, newest first"
        rows={data}
        problem={problem}
        again={again}
        empty="This meter has not been read yet."
        onMore={(data?.length ?? 0) >= most && (() => setMost(most === FIRST ? MORE : most + MORE))}
      />
    </section>
  );
}
