// Put in by the build.
declare const __APP_VERSION__: string;
declare const __PRECACHE__: string[];
declare const __BUILD__: string;
