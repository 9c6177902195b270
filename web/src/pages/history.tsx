// A meter's exchanges and readings, newest first, with what was corrected; and correcting them.

import { useEffect, useState } from 'preact/hooks';
import { usePages } from '../data/office';
import { meterTitle } from '../lib/format';
import * as state from '../state';
import type { Meter, Reading } from '../types';
import { Note, Table } from '../ui/parts';
import { Exchanges } from './exchanges';
import { Correct, keep, Photo, readingColumns } from './reading-parts';

const FIRST = 20;
const MORE = 200;

export function History({ meter }: { meter: Meter }) {
  const [most, setMost] = useState(FIRST);
  const [photo, setPhoto] = useState<string | null>(null);
  const [corrected, setCorrected] = useState<Reading | null>(null);
  const path = `/reading?meter=${encodeURIComponent(meter.id)}&order=desc`;
  const { data, problem, again } = usePages<Reading>(path, most);
  useEffect(again, [state.loadedAt.value, most]);
  const columns = readingColumns({
    onPhoto: setPhoto,
    onCorrect: setCorrected,
    onKeep: (reading) => void keep(reading).then(again),
  });
  return (
    <section class="card" aria-labelledby="history-head" data-testid="history">
      <h2 id="history-head">History</h2>
      <Exchanges meter={meter} />
      {problem && <Note tone="warn">{problem}</Note>}
      {data?.length === 0 && <p class="muted">This meter has not been read yet.</p>}
      {data && data.length > 0 && (
        <Table
          caption="Readings of this meter, newest first"
          rows={data}
          rowKey={(reading) => reading.id}
          columns={columns}
        />
      )}
      {data && data.length >= most && (
        <button type="button" onClick={() => setMost(most === FIRST ? MORE : most + MORE)}>
          Show older ones
        </button>
      )}
      {photo && <Photo id={photo} onClose={() => setPhoto(null)} />}
      {corrected && (
        <Correct
          reading={corrected}
          meter={meterTitle(meter)}
          onClose={() => setCorrected(null)}
          onDone={() => {
            setCorrected(null);
            again();
          }}
        />
      )}
    </section>
  );
}
