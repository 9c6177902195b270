// A meter's consumption over time: a curve, and the same as a table for those who cannot see it.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { useAgainAfterRefresh, useAsked } from '../data/office';
import { date, dateTime, decimal, times, unitName } from '../lib/format';
import type { ConsumptionPoint, Meter } from '../types';
import { Chart } from '../ui/chart';
import { List } from '../ui/list';
import { Choice, Note } from '../ui/parts';

type Step = 'hour' | 'day' | 'month';
const DAYS: Record<Step, number> = { hour: 3, day: 60, month: 730 };
const PER: Record<Step, string> = { hour: 'an hour', day: 'a day', month: 'a month' };
const DAY_MS = 86_400_000;

export function Consumption({ meter }: { meter: Meter }) {
  const [chosen, setStep] = useState<Step | null>(null);
  // Days, unless readings are too far apart to tell them.
  const [usual, setUsual] = useState<Step>('day');
  const step = chosen ?? usual;
  const from = useMemo(() => new Date(Date.now() - DAYS[step] * DAY_MS).toISOString(), [step]);
  const path = `/meter/${encodeURIComponent(meter.id)}/consumption?from=${from}&to=${useNow()}&step=${step}`;
  const { data, problem, again } = useAsked<{ points: ConsumptionPoint[]; time_zone: string }>(path);
  useAgainAfterRefresh(again, meter.id);
  const points = data?.points ?? [];
  const times = useMemo(() => points.map((point) => Date.parse(point.at) / 1000), [data]);
  const values = useMemo(() => points.map((point) => point.consumption), [data]);
  const unit = unitName(meter.unit);
  const isKnown = values.some((value) => value !== null);
  useEffect(() => {
    if (data && !isKnown && usual === 'day') setUsual('month');
  }, [data, isKnown]);
  return (
    <section class="card" aria-labelledby="consumption-head" data-testid="consumption">
      <div class="row">
        <h2 id="consumption-head" class="grow">
          Consumption
        </h2>
        <Choice
          label="Step"
          value={step}
          onChange={setStep}
          options={{ hour: 'Hours', day: 'Days', month: 'Months' }}
        />
      </div>
      {problem && <Note tone="warn">{problem}</Note>}
      {data && points.length === 0 && (
        <p class="muted">
          Fewer than two readings since {date(from)}: consumption is what the register has risen between two.
        </p>
      )}
      {points.length > 0 && !isKnown && (
        <p class="muted">
          The readings are too far apart to show the consumption of {PER[step]}.
          {step !== 'month' && ' Longer steps may show it.'}
        </p>
      )}
      {points.length > 0 && (
        <>
          {isKnown && (
            <Chart
              label={`Consumption in ${unit}; the table below has the same values`}
              times={times}
              values={values}
              unit={unit}
              timeZone={step === 'hour' ? undefined : data?.time_zone}
            />
          )}
          <details>
            <summary>Values as a table</summary>
            <List
              caption={`Consumption in ${unit}`}
              rows={[...points].reverse()}
              rowKey={(point) => point.at}
              columns={[
                {
                  name: 'From',
                  cell: (point) => (step === 'hour' ? dateTime(point.at) : dayIn(data?.time_zone, point.at)),
                },
                { name: `Register, ${unit}`, number: true, cell: (point) => shown(point.value) },
                { name: `Consumption, ${unit}`, number: true, cell: (point) => shown(point.consumption) },
              ]}
            />
          </details>
        </>
      )}
    </section>
  );
}

/** The day that begins then where the utility is, whatever the browser's zone. */
function dayIn(timeZone: string | undefined, at: string): string {
  return times({ day: 'numeric', month: 'short', year: 'numeric', ...(timeZone && { timeZone }) })(
    Date.parse(at),
  );
}

/** A dash where readings do not tell. */
function shown(value: number | null): string {
  return value === null ? '–' : decimal(value);
}

function useNow(): string {
  return useMemo(() => new Date().toISOString(), []);
}
