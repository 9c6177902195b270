// Bars over time (uPlot, fetched when first shown). It is a picture: whoever uses it puts a table beside it.

import { useEffect, useRef } from 'preact/hooks';
import * as state from '../state';
import { axes, color } from './axes';
import 'uplot/dist/uPlot.min.css';

const HEIGHT = 240;

export function Chart(props: {
  label: string;
  times: number[];
  values: (number | null)[];
  unit: string;
  /** Of the labels below; the browser's without it. */
  timeZone?: string | undefined;
}) {
  const element = useRef<HTMLDivElement>(null);
  const { label, times, values, unit, timeZone } = props;
  const theme = state.theme.value;
  useEffect(() => {
    let plot: { destroy(): void; setSize(size: { width: number; height: number }): void } | null = null;
    let isGone = false;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) plot?.setSize({ width: entry.contentRect.width, height: HEIGHT });
    });
    void import('uplot').then(({ default: Plot }) => {
      const box = element.current;
      if (isGone || !box) return;
      const paths = Plot.paths.bars?.({ size: [0.7, 40] });
      const series = {
        label: unit,
        stroke: color(box, '--accent'),
        width: 1,
        fill: color(box, '--accent-soft'),
        points: { show: false },
        ...(paths ? { paths } : {}),
      };
      const made = new Plot(
        {
          width: box.clientWidth,
          height: HEIGHT,
          series: [{}, series],
          scales: { y: { range: (_plot, _low, high) => fromZero(high) } },
          axes: axes(box, unit),
          legend: { show: false },
          cursor: { y: false },
          ...(timeZone && { tzDate: (at: number) => Plot.tzDate(new Date(at * 1000), timeZone) }),
          // What a test can see of a picture.
          hooks: { draw: [(drawn) => (box.dataset['from'] = String(drawn.scales['y']?.min))] },
        },
        [times, values],
        box,
      );
      plot = made;
      observer.observe(box);
    });
    return () => {
      isGone = true;
      observer.disconnect();
      plot?.destroy();
    };
  }, [times, values, unit, theme, timeZone]);
  return <div ref={element} class="chart" role="img" aria-label={label} />;
}

/** Bars are compared by their lengths, which must begin at nothing. */
function fromZero(high: number | null): [number, number] {
  return [0, high !== null && high > 0 ? high * 1.08 : 1];
}
