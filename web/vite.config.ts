import { defineConfig } from "vite";

// The bundle is a part of the Python package and is never committed.
export default defineConfig({
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  build: {
    outDir: "../src/cotenant/web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the content security policy forbids inline scripts and styles
    modulePreload: { polyfill: false },
    target: "es2022",
  },
});
