// The app's icons: strokes on a 24 by 24 grid, drawn for it. Decoration only; what they mean is said in
// words beside them or in the label of what holds them.

const PATHS = {
  broker: 'M4 5h16v6H4V5Zm0 8h16v6H4v-6Zm3-5h.01M7 16h.01M11 8h6m-6 8h6',
  home: 'M4 11.5 12 4l8 7.5M6 10v10h12V10M10 20v-6h4v6',
  rules: 'M5 4v6m0 4v6M12 4v2m0 4v10M19 4v9m0 4v3M3 12h4M10 8h4m3 7h4',
  sensor: 'M8 12a4 4 0 1 0 8 0 4 4 0 0 0-8 0Zm-3.500 6.500a9 9 0 0 1 0-13m15 0a9 9 0 0 1 0 13',
  map: 'M9 4 3 6.5v13L9 17l6 3 6-2.5v-13L15 7 9 4Zm0 0v13m6-10v13',
  lists: 'M9 6h11M9 12h11M9 18h11M4 6l1 1 2-2M4 12l1 1 2-2M4 18l1 1 2-2',
  radio:
    'M12 13v8M8.5 16.5a5 5 0 1 1 7 0M5.6 19.4a9 9 0 1 1 12.8 0M12 14a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3Z',
  pending: 'M12 16V4m0 0L7.5 8.5M12 4l4.5 4.5M4 15v4a1 1 0 0 0 1 1h14a1 1 0 0 0 1-1v-4',
  more: 'M5 12h.01M12 12h.01M19 12h.01',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 5 5',
  camera: 'M4 8h3l2-3h6l2 3h3v11H4V8Zm8 9a4 4 0 1 0 0-8 4 4 0 0 0 0 8Z',
  check: 'm5 13 4.5 4.5L19 7',
  warn: 'M12 4 2.5 20h19L12 4Zm0 6v4.5m0 2.8v.01',
  close: 'M6 6l12 12M18 6 6 18',
  back: 'M15 5l-7 7 7 7',
  next: 'M9 5l7 7-7 7',
  here: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Zm0-6v4m0 12v4M2 12h4m12 0h4',
  water: 'M12 3s6.5 7 6.5 11.5a6.5 6.5 0 0 1-13 0C5.5 10 12 3 12 3Z',
  warm: 'M9.500 8s5 5.400 5 9a5 5 0 0 1-10 0c0-3.600 5-9 5-9ZM17 20c2-2-2-3.500 0-5.500M20 20c2-2-2-3.500 0-5.500',
  heat: 'M12 3c1 4 5 5.5 5 10.5a5 5 0 0 1-10 0c0-2 1-3 2-4 .3 1.5 1 2 1.5 2C11 9 10.5 6 12 3Z',
  electricity: 'M13 3 5 14h6l-1 7 8-11h-6l1-7Z',
  other: 'M5 12a7 7 0 1 0 14 0 7 7 0 0 0-14 0Zm7 0 3-3',
  walk: 'M13 5.5a1.5 1.5 0 1 0 0-.01M10 21l2-6-2-3 1.5-4 3 3H18M12 15l3 2v4M9 9l-2 2v2',
  drive:
    'M3 16v-4l2.5-5h11l3.5 5 1 1v3h-2.5M9 16h6M3 16h1.5M3 12h16M6.8 18a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6Zm10.4 0a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6Z',
  offline:
    'M3 3l18 18M8 16.5a5.5 5.5 0 0 1 8 0M5 13a10 10 0 0 1 4-2.4m6.5.6A10 10 0 0 1 19 13M2 9.5a14 14 0 0 1 4.5-3M12 20h.01M11 5.5a14 14 0 0 1 11 4',
  chart: 'M4 4v16h16M8 15l3.5-5 3 3L20 6',
  people:
    'M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7Zm-7 9a7 7 0 0 1 14 0M16 4.5a3.5 3.5 0 0 1 0 6M18 14a7 7 0 0 1 4 6',
  missed: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-14v5.5l3.5 2',
  leak: 'M12 3s6 6.5 6 10.5a6 6 0 0 1-12 0C6 9.5 12 3 12 3Zm0 6v4m0 2.800v.01',
  devices: 'M7 3h10v18H7V3Zm4 15h2',
  export: 'M12 4v11m0 0-4-4m4 4 4-4M4 19h16',
  settings:
    'M4 7h9m5 0h2M4 17h2m5 0h9M15.5 9.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Zm-7 10a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z',
  overview: 'M4 4h7v9H4V4Zm9 0h7v5h-7V4Zm0 9h7v7h-7v-7Zm-9 4h7v3H4v-3Z',
  usb: 'M12 3v14M9 6l3-3 3 3M7 10v3l5 3m5-8v3l-5 3M12 21a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM6 10h2m8-2h2',
  sun: 'M12 16.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM12 2v2m0 16v2M2 12h2m16 0h2M5 5l1.4 1.4m11.2 11.200L19 19M5 19l1.4-1.4M17.6 6.4 19 5',
  moon: 'M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5Z',
  out: 'M10 4H5v16h5m4-4 4-4-4-4m4 4H9',
  refresh: 'M20 11a8 8 0 0 0-14.5-4M4 4v4h4M4 13a8 8 0 0 0 14.5 4M20 20v-4h-4',
  plus: 'M12 5v14M5 12h14',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 22 }: { name: IconName; size?: number }) {
  const width = name === 'more' ? 3 : 1.8;
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        stroke-width={width}
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

export function mediumIcon(medium: string | null): IconName {
  if (medium === 'water') return 'water';
  if (medium === 'warm_water') return 'warm';
  if (medium === 'heat' || medium === 'heat_cost' || medium === 'gas') return 'heat';
  return medium === 'electricity' ? 'electricity' : 'other';
}

/** The seabird: two wings over a wave. */
export function Logo({ size = 32 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 64 64" aria-hidden="true" focusable="false">
      <rect width="64" height="64" rx="15" fill="#0a4f6b" />
      <path
        d="M7 27c9-8 17-6 23 4 1 1.6 3 1.6 4 0 6-10 14-12 23-4-8-2-15 1-20 9-2 3.4-8 3.4-10 0-5-8-12-11-20-9Z"
        fill="#fff"
      />
      <path
        d="M12 49c7-5 13-5 20 0s13 5 20 0"
        fill="none"
        stroke="#5ed0f5"
        stroke-width="4"
        stroke-linecap="round"
      />
    </svg>
  );
}
